"""`Task`: what is learned, as a value. Training, evaluation and distillation know tasks by these names alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from louver.tasks.data import Example
from louver.tasks.metrics import Metric

Feature = dict[str, Any]
"""One piece of a text: ``input_ids`` and what the task wants to see in a batch."""
Batch = dict[str, Tensor]
TaskName = Literal["classify", "tag", "answer"]
TASKS: tuple[TaskName, ...] = ("classify", "tag", "answer")


class Task(Protocol):
    """What is learned from labelled texts, and how answers are judged."""

    @property
    def name(self) -> TaskName:
        """As a card names it."""
        ...

    @property
    def kind(self) -> str:
        """Row of `METRICS`; of a classification also what a card names."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Names, in the order that a card keeps."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers that the head gives: for a text, or for each token."""
        ...

    @property
    def per_token(self) -> bool:
        """Whether the head answers for every token."""
        ...

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Return what answers are held against, (texts, …).

        Raises:
            DataError: if a label is unknown.
        """
        ...

    def teach(self, target: Any, text: str, offsets: np.ndarray | None) -> Feature:
        """Return what a batch holds of a piece beside its ids.

        Args:
            target: of the piece's text, from `targets`.
            text: that `offsets` points into.
            offsets: (tokens, 2) characters of the piece's tokens, for tasks that answer for tokens.
        """
        ...

    def loss(self, outputs: Tensor, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            outputs: of the head.
            batch: ids, mask, and what `teach` gave.
            weights: (labels,) factor on each class, or None.
        """
        ...

    def class_weights(self, examples: Sequence[Example]) -> np.ndarray:
        """Return factors that give every class the same say.

        Raises:
            OptionError: if the task has no classes of texts.
        """
        ...

    def decisions(self, answers: np.ndarray, thresholds: Sequence[float] = ()) -> np.ndarray:
        """Turn the outputs of texts into decisions, in a form that the task's metrics compare with `targets`."""
        ...

    def tune_thresholds(self, answers: np.ndarray, targets: np.ndarray, score: Metric) -> list[float]:
        """Choose on validation what the card keeps as thresholds; empty if the task has none."""
        ...


def tuned(task: Task, score: Metric, answers: np.ndarray, targets: np.ndarray) -> float:
    """Score answers at the thresholds that are best for them."""
    return score(targets, task.decisions(answers, task.tune_thresholds(answers, targets, score)))
