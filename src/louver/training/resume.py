"""Where an interrupted training keeps what it has, and how the next one finds it.

Checkpoints lie in a hidden sibling of the bundle that is being made, with a key of all that decides the outcome. A run
that ends well removes them; one with other settings refuses them instead of going on with half of something else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from louver.errors import TrainingError
from louver.storage import locked, storing, write_text
from louver.training.processes import is_first
from louver.versions import versions

_KEY = "key.json"
_ROWS = 1 << 20


def fingerprint(data: Any) -> str:
    """Return a hash of all that is learned from: arrays and numbers, in lists and dictionaries of any depth."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for name in sorted(part):
                digest.update(name.encode())
                add(part[name])
        elif isinstance(part, np.ndarray) and part.dtype == object:  # its bytes would be addresses
            add(part.tolist())
        elif isinstance(part, list | tuple):
            for one in part:
                add(one)
        elif isinstance(part, str):
            digest.update(part.encode("utf8", "surrogatepass"))
        elif isinstance(part, np.memmap):
            for first in range(0, len(part), _ROWS):  # a corpus may be larger than memory
                digest.update(np.ascontiguousarray(part[first : first + _ROWS]).tobytes())
        else:
            digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(b"|")

    add(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Places:
    """Where a training keeps files.

    Attributes:
        checkpoints: for an interrupted run.
        curves: for TensorBoard.
    """

    checkpoints: Path
    curves: Path


@contextmanager
def places(into: str | Path, key: dict[str, Any]) -> Iterator[Places]:
    """Give directories for a training, with the checkpoints of an interrupted run of the same key.

    Args:
        into: the bundle that is being made.
        key: all that decides the outcome: digests of the parent and of the data, options, what is learned.

    Yields:
        The directories; checkpoints are removed if the block ends well, or if training cannot go on from them.

    Raises:
        TrainingError: if an interrupted run had another key.
        StorageError: if another process trains the same bundle.
    """
    target = Path(into)
    if not is_first():
        yield Places(target.with_name(f".{target.name}.training"), target)
        return
    home = target.with_name(f".{target.name}.training")
    written = json.dumps({**key, "versions": versions()}, sort_keys=True, default=str, indent=1)
    with storing("a checkpoint"), locked(home):
        begun = (home / _KEY).is_file() and (home / _KEY).read_text("utf8") != written
        if begun and any(home.glob("checkpoint-*")):  # without one, nothing would be lost
            raise TrainingError(
                f"{home} holds an interrupted training with other settings, data or versions; delete it, or give the "
                "ones that it had"
            )
        write_text(home / _KEY, written)
        try:
            yield Places(home, target.parent / "tensorboard" / target.name)
        except TrainingError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        shutil.rmtree(home, ignore_errors=True)
