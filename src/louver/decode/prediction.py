"""`Prediction`: the answer for one text, and what was read for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from louver.bundle import Card
from louver.decode.classify import decide, probabilities


@dataclass(frozen=True)
class Prediction:
    """The answer for one text. Of `label`, `labels`, `value` and `embedding`, the one that the task gives is set.

    Attributes:
        label: name of the most likely label.
        labels: names of all labels over their thresholds.
        value: a number, of a regression.
        embedding: the text's vector.
        scores: probability by label name.
        tokens_read: tokens of the text that the model read, without specials.
        tokens_cut: tokens of the text that it did not read.
        error: what was wrong with this text; then there is no answer.
    """

    label: str | None = None
    labels: tuple[str, ...] | None = None
    value: float | None = None
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
            if isinstance(value, np.ndarray):
                value = value.tolist()
            if isinstance(value, dict):
                value = {name: round(score, 6) for name, score in value.items()}
            if value is not None or field.name == "error":
                row[field.name] = list(value) if isinstance(value, tuple) else value
        return row


def decode(output: np.ndarray, card: Card, read: int, cut: int) -> Prediction:
    """Turn one text's output into its answer.

    Args:
        output: (labels,) logits or (width,) embedding.
        card: the bundle's card.
        read: tokens read.
        cut: tokens not read.
    """
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
