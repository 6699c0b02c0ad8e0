"""`Predictor`: texts in, predictions out, in order, each computed at its own length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.decode import Prediction, decode, pool_windows
from louver.errors import OptionError, TextError
from louver.runtime.engine import Engine, open_engine, usable_cores
from louver.runtime.schedule import Group, schedule
from louver.text import Fitted, Tokenizer, Truncation, check, fit


class Predictor:
    """Answers texts with a bundle.

    A text that cannot be read becomes a prediction with an `error`; the others are answered. The same text gets the
    same answer alone and in any batch.

    Args:
        bundle: a bundle or its directory.
        truncation: what to do with longer texts than the model reads; the bundle's own policy if None.
        threads: cores to use; all that the process may use if None.
        max_tokens: tokens a call at most; bounds memory.
        engine: what runs the ids; chosen by the bundle's files if None.

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
        engine: Engine | None = None,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.card = self.bundle.card
        self.truncation = Truncation.named(truncation or self.card.truncation)
        if threads is not None and threads < 1:
            raise OptionError(f"threads must be positive, got {threads}; leave it out to use every core")
        self.tokenizer = Tokenizer.open(self.bundle.path)
        self.engine = engine or open_engine(self.bundle, threads or usable_cores())
        self.max_tokens = max_tokens
        self._pool = ThreadPoolExecutor(self.engine.workers, "louver-worker")

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Answer texts, in their order.

        Args:
            texts: strings; anything that is none, is empty or is no valid Unicode gets an `error`.
        """
        if isinstance(texts, str):
            raise OptionError("predict takes a list of texts, got one string; write predict([text])")
        results: list[Prediction | None] = [None] * len(texts)
        fitted = self._fit(texts, results)
        pieces = [(index, self.tokenizer.wrap(piece)) for index, found in fitted.items() for piece in found.pieces]
        outputs = self._run([ids for _, ids in pieces])
        of_text: dict[int, list[int]] = {}
        for number, (index, _) in enumerate(pieces):
            of_text.setdefault(index, []).append(number)
        for index, numbers in of_text.items():
            found = fitted[index]
            output = outputs[numbers[0]]
            if len(numbers) > 1:
                tokens = [len(pieces[n][1]) for n in numbers]
                output = pool_windows(np.stack([outputs[n] for n in numbers]), tokens, self.card.kind)
            results[index] = decode(output, self.card, found.read, found.cut)
        return [result for result in results if result is not None]

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Return the raw outputs (n, outputs) of texts that can all be read; for measuring.

        Raises:
            TextError: for the first text that cannot.
        """
        results: list[Prediction | None] = [None] * len(texts)
        fitted = self._fit(texts, results)
        bad = next((r for r in results if r is not None), None)
        if bad is not None:
            raise TextError(str(bad.error))
        pieces = [(index, self.tokenizer.wrap(piece)) for index, found in fitted.items() for piece in found.pieces]
        outputs = self._run([ids for _, ids in pieces])
        rows = []
        for index in range(len(texts)):
            mine = [n for n, (i, _) in enumerate(pieces) if i == index]
            stacked = np.stack([outputs[n] for n in mine])
            rows.append(pool_windows(stacked, [len(pieces[n][1]) for n in mine], self.card.kind))
        return np.stack(rows)

    def stream(self, texts: Iterable[str], *, chunk: int = 256) -> Iterator[Prediction]:
        """Answer texts as they come, in order, holding one chunk at a time.

        Args:
            texts: any iterable.
            chunk: texts that are scheduled together; more pads less, and answers later.
        """
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

    def _fit(self, texts: Sequence[str], results: list[Prediction | None]) -> dict[int, Fitted]:
        """Tokenize and cut the texts that can be read; put an error into the results of the others."""
        readable: list[tuple[int, str]] = []
        for index, text in enumerate(texts):
            try:
                readable.append((index, self.card.prompt + check(text)))
            except TextError as error:
                results[index] = Prediction(error=str(error))
        fitted: dict[int, Fitted] = {}
        room = self.card.max_length - self.tokenizer.specials
        encoded = self.tokenizer.encode([text for _, text in readable])
        for (index, _), ids in zip(readable, encoded, strict=True):
            try:
                fitted[index] = fit(ids, room, self.truncation, max_length=self.card.max_length)
            except TextError as error:
                results[index] = Prediction(error=str(error), tokens_cut=len(ids))
        return fitted

    def _run(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Compute every row's output; the calls run side by side on the engine's workers."""
        groups = schedule(
            [len(row) for row in rows],
            self.engine.branches,
            max_tokens=self.max_tokens,
            alone=not self.card.batch_invariant,
        )
        outputs: list[np.ndarray] = [np.empty(0)] * len(rows)
        single = len(groups) == 1

        def call(group: Group) -> None:
            ids = np.full((len(group.members), group.width), self.tokenizer.pad_id, np.int64)
            mask = np.zeros_like(ids)
            for row, member in enumerate(group.members):
                ids[row, : len(rows[member])] = rows[member]
                mask[row, : len(rows[member])] = 1
            found = self.engine.run(group.branch, ids, mask, single=single)
            for row, member in enumerate(group.members):
                outputs[member] = found[row]

        if single:
            call(groups[0])
        else:
            list(self._pool.map(call, groups))
        return outputs
