"""`Predictor`: texts in, predictions out, in order, each computed at its own length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.decode import Prediction, stack
from louver.errors import OptionError, TextError
from louver.runtime.engine import Engine, open_engine
from louver.runtime.reading import Read, Reading
from louver.runtime.schedule import Group, schedule
from louver.text import Text, rectangle


class Predictor:
    """Answers texts with a bundle.

    A text that cannot be read becomes a prediction with an `error`; the others are answered. The same text gets the
    same answer alone and in any batch.

    Args:
        bundle: a bundle or its directory.
        truncation: what to do with longer texts than the model reads; the bundle's own policy if None.
        threads: cores to use; all that the process may use if None.
        max_tokens: tokens a call at most; bounds memory.
        engine: what runs the ids: "onnxruntime", "openvino" or "torch", or an engine; by the bundle's files if None.

    Raises:
        BundleError: if the directory is no bundle, or was changed.
        OptionError: if an option is out of range.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        truncation: str | None = None,
        threads: int | None = None,
        max_tokens: int = 4096,
        engine: Engine | str | None = None,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.card = self.bundle.card
        if threads is not None and threads < 1:
            raise OptionError(f"threads must be positive, got {threads}; leave it out to use every core")
        self.reading = Reading(self.bundle, truncation)
        self.engine: Engine = (
            open_engine(self.bundle, threads, engine) if engine is None or isinstance(engine, str) else engine
        )
        self.max_tokens = max_tokens
        self._pool = ThreadPoolExecutor(self.engine.workers, "louver-worker")

    def predict(self, texts: Sequence[Text]) -> list[Prediction]:
        """Answer texts, in their order.

        Args:
            texts: strings, or pairs of them where the bundle reads pairs; what is neither, is empty, or is no valid
                Unicode gets an `error`.
        """
        if isinstance(texts, str):
            raise OptionError("predict takes a list of texts, got one string; write predict([text])")
        read = self.reading.read(texts)
        return [self.reading.answer(one, mine) for one, mine in zip(read, self._run(read), strict=True)]

    def logits(self, texts: Sequence[Text]) -> np.ndarray:
        """Return the raw outputs of texts that can all be read; for measuring.

        Returns:
            (n, outputs); of a task that answers for tokens, n objects `TokenLogits`.

        Raises:
            TextError: for the first text that cannot.
        """
        if not len(texts):
            raise OptionError("logits takes at least one text, got none")
        read = self.reading.read(texts)
        for number, one in enumerate(read, 1):
            if one.error is not None:
                raise TextError(f"text {number} of {len(texts)}: {one.error}")
        return stack([self.reading.output(one, mine) for one, mine in zip(read, self._run(read), strict=True)])

    def stream(self, texts: Iterable[Text], *, chunk: int = 256) -> Iterator[Prediction]:
        """Answer texts as they come, in order, holding one chunk at a time.

        Args:
            texts: any iterable.
            chunk: texts that are scheduled together; more pads less, and answers later.
        """
        if chunk < 1:
            raise OptionError(f"chunk must be positive, got {chunk}; 256 is the default")
        rest = iter(texts)
        while part := list(islice(rest, chunk)):
            yield from self.predict(part)

    def close(self) -> None:
        """End the worker threads."""
        self._pool.shutdown()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, read: Sequence[Read]) -> list[list[np.ndarray]]:
        """Compute the pieces of every text; the calls run side by side on the engine's workers."""
        rows = [piece for one in read for piece in one.fitted.pieces]
        groups = schedule(
            [len(row) for row in rows],
            self.engine.branches,
            max_tokens=self.max_tokens,
            alone=not self.card.batch_invariant,
        )
        outputs: list[np.ndarray] = [np.empty(0)] * len(rows)
        single = len(groups) == 1

        def call(group: Group) -> None:
            ids, mask = rectangle(
                [rows[member] for member in group.members], self.reading.tokenizer.pad_id, group.width
            )
            found = self.engine.run(group.branch, ids, mask, single=single)
            for row, member in enumerate(group.members):
                outputs[member] = found[row] if found.ndim == 2 else found[row, : len(rows[member])]

        if single:
            call(groups[0])
        else:
            list(self._pool.map(call, groups))
        left = iter(outputs)
        return [list(islice(left, len(one.fitted.pieces))) for one in read]
