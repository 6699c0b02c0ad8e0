"""`Reading`: texts to the rows that an engine computes, and their outputs to answers. No engine in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from louver.bundle import Bundle
from louver.decode import Output, Prediction, decode, join
from louver.errors import TextError
from louver.text import Fitted, Text, Tokenizer, Truncation, check, check_pair, inputs


@dataclass(frozen=True, eq=False)
class Read:
    """One text as a model gets it.

    Attributes:
        text: the text; None if it cannot be read.
        fitted: its pieces.
    """

    text: Text | None
    fitted: Fitted

    @property
    def error(self) -> str | None:
        """Why there are no pieces."""
        return self.fitted.error

    @property
    def tokens(self) -> int:
        """Tokens that are computed for it, specials included."""
        return sum(len(piece) for piece in self.fitted.pieces)


class Reading:
    """What a bundle does to texts before its engine computes them, and after.

    Args:
        bundle: of which the tokenizer and the card are read.
        truncation: what to do with longer texts than the model reads; the bundle's own policy if None.
    """

    def __init__(self, bundle: Bundle, truncation: str | None = None) -> None:
        self.card = bundle.card
        self.tokenizer = Tokenizer.open(bundle.path)
        self.truncation = Truncation.named(self.card.truncation if truncation is None else truncation)

    def check(self, text: object) -> Text:
        """Return a text, or a pair of them where the bundle reads pairs.

        Raises:
            TextError: if it cannot be read.
        """
        return check_pair(text) if self.card.inputs == "pair" else check(text)

    def read(self, texts: Sequence[object], truncation: Truncation | None = None) -> list[Read]:
        """Tokenize texts; one that cannot be read has an error in place of pieces.

        Args:
            texts: what they should be is for `check` to say.
            truncation: another policy for these texts.
        """
        checked: list[Text | TextError] = []
        for text in texts:
            try:
                checked.append(self.check(text))
            except TextError as error:
                checked.append(error)
        readable = [text for text in checked if not isinstance(text, TextError)]
        fitted = iter(
            inputs(
                self.tokenizer,
                readable,
                max_length=self.card.max_length,
                truncation=truncation or self.truncation,
                prompt=self.card.prompt,
                offsets=self.card.pooling == "none",
            )
        )
        return [
            Read(None, Fitted([], 0, 0, str(one))) if isinstance(one, TextError) else Read(one, next(fitted))
            for one in checked
        ]

    def output(self, read: Read, outputs: Sequence[np.ndarray]) -> Output:
        """Join the outputs of a text's pieces."""
        assert read.text is not None, "a text without pieces has no output"
        return join(outputs, read.fitted, read.text, self.card)

    def answer(self, read: Read, outputs: Sequence[np.ndarray]) -> Prediction:
        """Turn the outputs of a text's pieces into its answer, or say why there is none."""
        if read.error is not None:
            return Prediction(error=read.error, tokens_cut=read.fitted.cut)
        return decode(self.output(read, outputs), self.card, read.fitted.read, read.fitted.cut)
