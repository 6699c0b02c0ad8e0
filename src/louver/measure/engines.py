"""Which engine is the fastest on this machine, for a bundle and for texts like those to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from louver.bundle import Bundle
from louver.decode import TokenLogits
from louver.errors import MissingExtraError, OptionError
from louver.measure.speed import race
from louver.runtime.engine import ENGINES, engine_of
from louver.runtime.predictor import Predictor


@dataclass(frozen=True)
class EngineSpeed:
    """What one engine reached.

    Attributes:
        engine: its name.
        texts_per_s: median of the rounds, tokenization included.
        tokens_per_s: of tokens that were read, specials apart.
        difference: largest one of an output from the first engine's, over 1 + the largest output.
    """

    engine: str
    texts_per_s: float
    tokens_per_s: float
    difference: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def race_engines(
    bundle: Bundle | str | Path,
    texts: Sequence[str],
    *,
    threads: int | None = None,
    rounds: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> list[EngineSpeed]:
    """Time the engines that are installed and run this bundle, in turns.

    Args:
        bundle: any.
        texts: like those to come.
        threads: cores to use; all if None.
        rounds: turns that count.
        say: told what is being timed.

    Returns:
        The fastest first.

    Raises:
        OptionError: if there is no text.
    """
    if not texts:
        raise OptionError("a race needs texts, got none")
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    named = []
    for name in ENGINES:
        try:
            named.append(engine_of(opened, name))
        except MissingExtraError as error:
            say(f"left out: {error}")
        except OptionError:  # is not for this kind of bundle
            continue
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(Predictor(opened, truncation="head", threads=threads, engine=name))
            for name in named
        }
        tokens = sum(one.tokens_read for one in contenders[named[0]].predict(texts))
        outputs = {name: one.logits(texts) for name, one in contenders.items()}  # warms up too
        speeds = race(contenders, texts, {}, rounds=rounds, say=say)
    found = [
        EngineSpeed(
            name,
            round(speed.documents_per_s, 2),
            round(speed.documents_per_s * tokens / len(texts)),
            _difference(outputs[named[0]], outputs[name]),
        )
        for name, speed in speeds.items()
    ]
    return sorted(found, key=lambda one: -one.texts_per_s)


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    pairs = [(_numbers(a), _numbers(b)) for a, b in zip(expected, found, strict=True)]
    top = max(float(np.abs(a).max()) for a, _ in pairs)
    return max(float(np.abs(a - b).max()) for a, b in pairs) / (1 + top)


def _numbers(output: Any) -> np.ndarray:
    """Return an output as one array: of a task that answers for tokens, its pieces behind each other."""
    return np.concatenate(output.windows) if isinstance(output, TokenLogits) else np.asarray(output)
