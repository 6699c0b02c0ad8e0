"""Extractive question answering as a value: the stretch of a text that answers a question, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from louver.decode import Span, find_answer
from louver.errors import DataError, OptionError
from louver.tasks.data import Example, objects
from louver.tasks.metrics import Metric
from louver.tasks.task import Batch, Feature, TaskName


@dataclass(frozen=True)
class Answering:
    """Where in a text the answer to a question stands (Devlin et al. 2019, sections 4.2 and 4.3).

    Two outputs a token, for the start and the end. A question that the text does not answer points to the first token;
    the score from which a stretch counts as an answer is tuned on validation.
    """

    labels: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[TaskName] = "answer"
    kind: ClassVar[str] = "answer"
    per_token: ClassVar[bool] = True
    outputs: ClassVar[int] = 2

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Answering:
        """Check that a training set has questions with answers.

        Raises:
            DataError: if no question has an answer, or a row has no second text.
        """
        if not any(_answers(example) for example in examples):
            raise DataError("no training row has an answer; give answers with their place in the text")
        return cls()

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Return the right answers to each question, (texts,) objects: tuples of spans named by their text."""
        return objects([_answers(example) for example in examples])

    def teach(self, target: Any, text: str, offsets: np.ndarray | None) -> Feature:
        """Return the tokens (first, last) of the first answer that the piece holds whole; (0, 0) if it holds none."""
        assert offsets is not None
        where = np.zeros(2, np.int64)
        for span in target:
            touched = np.flatnonzero((offsets[:, 0] >= 0) & (offsets[:, 0] < span.end) & (offsets[:, 1] > span.start))
            whole = len(touched) and offsets[touched[0], 0] <= span.start and offsets[touched[-1], 1] >= span.end
            if whole:
                where[:] = touched[0], touched[-1]
                break
        return {"where": where}

    def loss(self, outputs: Tensor, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Return the mean of both cross-entropies over the tokens of each piece."""
        hidden = batch["attention_mask"] == 0
        scores = outputs.masked_fill(hidden[:, :, None], torch.finfo(outputs.dtype).min)
        start = F.cross_entropy(scores[:, :, 0], batch["where"][:, 0])
        return (start + F.cross_entropy(scores[:, :, 1], batch["where"][:, 1])) / 2

    def class_weights(self, examples: Sequence[Example]) -> np.ndarray:
        """Refuse: answers are no classes of texts."""
        raise OptionError("class weights are for classifications; leave them out for answers")

    def decisions(self, answers: np.ndarray, thresholds: Sequence[float] = ()) -> np.ndarray:
        """Return the text of each answer, empty for none: (texts,) objects."""
        limit = thresholds[0] if len(thresholds) else 0.0
        return objects([found.text if found.score > limit else "" for found in map(find_answer, answers)])

    def tune_thresholds(self, answers: np.ndarray, targets: np.ndarray, score: Metric) -> list[float]:
        """Choose the score from which there is an answer; where every question has one, there always is."""
        found = [find_answer(one) for one in answers]
        scores = np.asarray([one.score for one in found])
        if all(targets):
            return [-1e9]
        texts = objects([one.text for one in found])
        nothing = objects([""] * len(found))
        candidates = np.quantile(scores, np.linspace(0, 1, 65))
        reached = [score(targets, np.where(scores > limit, texts, nothing)) for limit in candidates]
        return [round(float(candidates[int(np.argmax(reached))]), 4)]


def _answers(example: Example) -> tuple[Span, ...]:
    """Return a question's answers; the label of each is its text."""
    if not example.pair:
        raise DataError("answering needs a question and a text in every row; name the column of the text as the pair")
    if not isinstance(example.label, tuple) or not all(isinstance(span, Span) for span in example.label):
        raise DataError(
            f"answering needs answers, and a row has {example.label!r}; read the rows for the task 'answer'"
        )
    return tuple(Span(span.start, span.end, example.pair[span.start : span.end]) for span in example.label)  # type: ignore[union-attr]
