"""`Prediction`: the answer for one text, and what was read for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from louver.bundle import Card
from louver.decode.classify import decide, pool_windows, probabilities
from louver.decode.tokens import FoundSpan, TokenLogits, find_answer, find_spans
from louver.text import Fitted, Text

Output = np.ndarray | TokenLogits
"""What a model gave for one text: (outputs,), or something for each token."""


@dataclass(frozen=True)
class Prediction:
    """The answer for one text. Of `label`, `labels`, `value`, `spans`, `answer` and `embedding`, the task's is set.

    Attributes:
        label: name of the most likely label.
        labels: names of all labels over their thresholds.
        value: a number, of a regression.
        spans: stretches of the text with their names, from left to right.
        answer: the stretch that answers a question; None if the text has none.
        answer_score: the best stretch's logits over those of "no answer".
        embedding: the text's vector.
        scores: probability by label name.
        tokens_read: tokens of the text that the model read, without specials.
        tokens_cut: tokens of the text that it did not read.
        error: what was wrong with this text; then there is no answer.
    """

    label: str | None = None
    labels: tuple[str, ...] | None = None
    value: float | None = None
    spans: tuple[FoundSpan, ...] | None = None
    answer: FoundSpan | None = None
    answer_score: float | None = None
    embedding: np.ndarray | None = None
    scores: dict[str, float] | None = None
    tokens_read: int = 0
    tokens_cut: int = 0
    error: str | None = None

    def to_row(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON-ready values; the token counts and the error always.

        Scores are rounded to six places: more is noise.
        """
        row: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.name == "error" or (field.name == "answer" and self.answer_score is not None):
                row[field.name] = _plain(value)
        return row


def _plain(value: Any) -> Any:
    """Return a field's value as JSON knows it."""
    if isinstance(value, FoundSpan):
        return {name: _plain(part) for name, part in value._asdict().items() if part != ""}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, float):
        return round(value, 6)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def join(outputs: Sequence[np.ndarray], fitted: Fitted, text: Text, card: Card) -> Output:
    """Join what a model gave for the pieces of a text.

    Args:
        outputs: (outputs,) a piece, or (tokens, outputs).
        fitted: the pieces.
        text: that they are of; answers point into the second one of a pair.
        card: the bundle's.
    """
    if card.task in ("tag", "answer"):
        return TokenLogits(tuple(outputs), fitted.offsets, text if isinstance(text, str) else text[1])
    return pool_windows(np.stack(outputs), fitted.counts, card.kind)


def stack(outputs: Sequence[Output]) -> np.ndarray:
    """Put the outputs of texts under each other: (texts, outputs), or (texts,) objects."""
    if outputs and isinstance(outputs[0], np.ndarray):
        return np.stack([output for output in outputs if isinstance(output, np.ndarray)])
    found = np.empty(len(outputs), object)
    found[:] = outputs
    return found


def flat(output: Output) -> np.ndarray:
    """Return a text's output as one row of numbers; of tokens, those of the first piece."""
    return output.windows[0].reshape(-1) if isinstance(output, TokenLogits) else output


def decode(output: Output, card: Card, read: int, cut: int) -> Prediction:
    """Turn one text's output into its answer.

    Args:
        output: (labels,) logits, (width,) embedding, or logits of every token.
        card: the bundle's card.
        read: tokens read.
        cut: tokens not read.
    """
    if isinstance(output, TokenLogits):
        if card.task == "tag":
            spans = tuple(find_spans(output, card.labels))
            return Prediction(spans=spans, tokens_read=read, tokens_cut=cut)
        found = find_answer(output)
        answer = found if found.score > (card.thresholds[0] if card.thresholds else 0.0) else None
        return Prediction(answer=answer, answer_score=found.score, tokens_read=read, tokens_cut=cut)
    if card.task == "embed":
        length = float(np.linalg.norm(output)) or 1.0
        return Prediction(embedding=(output / length).astype(np.float32), tokens_read=read, tokens_cut=cut)
    if card.kind == "regression":
        return Prediction(value=float(output[0]), tokens_read=read, tokens_cut=cut)
    kind = card.kind or "single"
    chances = probabilities(output, kind)
    scores = {name: float(chance) for name, chance in zip(card.labels, chances, strict=True)}
    if kind == "multi":
        chosen = decide(output[None], kind, card.thresholds)[0]
        names = tuple(name for name, yes in zip(card.labels, chosen, strict=True) if yes)
        return Prediction(labels=names, scores=scores, tokens_read=read, tokens_cut=cut)
    return Prediction(label=card.labels[int(chances.argmax())], scores=scores, tokens_read=read, tokens_cut=cut)
