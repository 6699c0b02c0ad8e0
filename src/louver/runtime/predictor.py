"""`Predictor`: texts in, predictions out, in order, each computed at its own length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.decode import Output, Prediction, decode, join, stack
from louver.errors import OptionError, TextError
from louver.runtime.engine import Engine, open_engine
from louver.runtime.schedule import Group, schedule
from louver.text import Fitted, Text, Tokenizer, Truncation, check, check_pair, inputs, rectangle


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
        self.truncation = Truncation.named(self.card.truncation if truncation is None else truncation)
        if threads is not None and threads < 1:
            raise OptionError(f"threads must be positive, got {threads}; leave it out to use every core")
        self.tokenizer = Tokenizer.open(self.bundle.path)
        self.engine = engine or open_engine(self.bundle, threads)
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
        results = [Prediction()] * len(texts)
        readable: list[tuple[int, Text]] = []
        for index, text in enumerate(texts):
            try:
                readable.append((index, self._check(text)))
            except TextError as error:
                results[index] = Prediction(error=str(error))
        texts = [text for _, text in readable]
        fitted = self._fit(texts)
        outputs = self._run(texts, fitted)
        for (index, _), found, output in zip(readable, fitted, outputs, strict=True):
            if output is None:
                results[index] = Prediction(error=found.error, tokens_cut=found.cut)
            else:
                results[index] = decode(output, self.card, found.read, found.cut)
        return results

    def logits(self, texts: Sequence[Text]) -> np.ndarray:
        """Return the raw outputs of texts that can all be read; for measuring.

        Returns:
            (n, outputs); of a task that answers for tokens, n objects `TokenLogits`.

        Raises:
            TextError: for the first text that cannot.
        """
        if not len(texts):
            raise OptionError("logits takes at least one text, got none")
        readable = []
        for number, text in enumerate(texts, 1):
            try:
                readable.append(self._check(text))
            except TextError as error:
                raise TextError(f"text {number} of {len(texts)}: {error}") from error
        fitted = self._fit(readable)
        for found in fitted:
            if found.error is not None:
                raise TextError(found.error)
        return stack([output for output in self._run(readable, fitted) if output is not None])

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

    def _check(self, text: object) -> Text:
        return check_pair(text) if self.card.inputs == "pair" else check(text)

    def _fit(self, texts: Sequence[Text]) -> list[Fitted]:
        return inputs(
            self.tokenizer,
            texts,
            max_length=self.card.max_length,
            truncation=self.truncation,
            prompt=self.card.prompt,
            offsets=self.card.pooling == "none",
        )

    def _run(self, texts: Sequence[Text], fitted: Sequence[Fitted]) -> list[Output | None]:
        """Compute every text's output from its pieces; a text without pieces gets None."""
        outputs = iter(self._run_pieces([piece for found in fitted for piece in found.pieces]))
        answers: list[Output | None] = []
        for text, found in zip(texts, fitted, strict=True):
            mine = list(islice(outputs, len(found.pieces)))
            answers.append(join(mine, found, text, self.card) if mine else None)
        return answers

    def _run_pieces(self, rows: list[np.ndarray]) -> list[np.ndarray]:
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
            ids, mask = rectangle([rows[member] for member in group.members], self.tokenizer.pad_id, group.width)
            found = self.engine.run(group.branch, ids, mask, single=single)
            for row, member in enumerate(group.members):
                outputs[member] = found[row] if found.ndim == 2 else found[row, : len(rows[member])]

        if single:
            call(groups[0])
        else:
            list(self._pool.map(call, groups))
        return outputs
