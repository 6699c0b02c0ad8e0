"""Classification as a value: label names to targets, loss, decisions, thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from louver.decode.classify import decide, probabilities
from louver.errors import DataError
from louver.tasks.data import Example, names_of
from louver.tasks.metrics import Metric
from louver.tasks.task import Batch, Feature, TaskName

Kind = Literal["single", "multi", "regression"]


@dataclass(frozen=True)
class Classification:
    """What is learned of a text or a pair of texts: one label of several, a set of labels, or a number.

    Attributes:
        kind: "single", "multi" or "regression".
        labels: names in the order of the logits; empty for a number.
    """

    kind: Kind
    labels: tuple[str, ...]
    name: ClassVar[TaskName] = "classify"
    per_token: ClassVar[bool] = False

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Classification:
        """Find out what a training set asks for; names are sorted, so that the order never depends on the rows'.

        Raises:
            DataError: if names and numbers are mixed, or there is one class only.
        """
        kinds = {type(e.label) for e in examples}
        if kinds == {float}:
            return cls("regression", ())
        if float in kinds:
            raise DataError("labels mix names and numbers; write all of them one way")
        labels = tuple(sorted({name for e in examples for name in names_of(e.label)}))
        if len(labels) < 2:
            found = f"one class only, {labels[0]!r}" if labels else "no labels, every list is empty"
            raise DataError(f"training has {found}; a classification needs two")
        return cls("multi" if tuple in kinds else "single", labels)

    @property
    def outputs(self) -> int:
        """Numbers that the head gives."""
        return max(1, len(self.labels))

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Return int64 indices (n,), float32 zeros and ones (n, labels), or float32 numbers (n,).

        Raises:
            DataError: if a label is not one of `labels`.
        """
        if self.kind == "regression":
            names = [e.label for e in examples if not isinstance(e.label, float)]
            if names:
                raise DataError(f"the model gives numbers, and a label is {names[0]!r}; read them with labels: numbers")
            return np.asarray([e.label for e in examples], np.float32)
        index = {name: i for i, name in enumerate(self.labels)}
        for example in examples:
            for name in names_of(example.label):
                if name not in index:
                    raise DataError(f"label {name!r} was not in training, which had: {', '.join(self.labels)}")
        if self.kind == "single":
            for example in examples:
                if len(names_of(example.label)) != 1:
                    raise DataError(
                        f"the model gives one label a text, and a row has {len(names_of(example.label))}: "
                        f"{example.label!r}; mend the row, or train on such rows"
                    )
            return np.asarray([index[names_of(e.label)[0]] for e in examples], np.int64)
        result = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in enumerate(examples):
            result[row, [index[name] for name in names_of(example.label)]] = 1
        return result

    def teach(self, target: Any, text: str, offsets: np.ndarray | None) -> Feature:
        """Return the target: every piece of a text has its text's."""
        return {"labels": target}

    def loss(self, outputs: Tensor, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss: cross-entropy, binary cross-entropy or squared error.

        Args:
            outputs: (batch, outputs) logits.
            batch: with ``labels`` as `targets` gives them.
            weights: (labels,) factor on each class, or None.
        """
        targets = batch["labels"]
        weights = None if weights is None else weights.to(outputs.device)
        if self.kind == "single":
            return F.cross_entropy(outputs, targets, weight=weights)
        if self.kind == "multi":
            return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)
        return F.mse_loss(outputs[:, 0], targets)

    def class_weights(self, examples: Sequence[Example]) -> np.ndarray:
        """Return factors that give every class the same say: n / (classes · count), or negatives / positives."""
        counts = Counter(name for e in examples for name in names_of(e.label))
        found = np.asarray([max(counts[name], 1) for name in self.labels], np.float32)
        total = len(examples)
        return total / (len(self.labels) * found) if self.kind == "single" else (total - found) / found

    def decisions(self, answers: np.ndarray, thresholds: Sequence[float] = ()) -> np.ndarray:
        """Return decisions in the form of `targets`."""
        return decide(answers, self.kind, thresholds)

    def tune_thresholds(self, answers: np.ndarray, targets: np.ndarray, score: Metric) -> list[float]:
        """Choose each label's threshold on validation, one label after the other, twice round, by the score itself.

        Args:
            answers: (n, labels) logits of validation.
            targets: (n, labels) of validation.
            score: the metric that counts.

        Returns:
            One probability a label; 0.5 where nothing scores better. Empty unless there are several labels.
        """
        if self.kind != "multi":
            return []
        chances = probabilities(answers, "multi")
        thresholds = np.full(len(self.labels), 0.5)
        for _ in range(2):
            for label in range(len(self.labels)):
                candidates = [0.5, *np.linspace(0.1, 0.9, 33)]
                scores = []
                for candidate in candidates:
                    thresholds[label] = candidate
                    scores.append(score(targets, (chances >= thresholds).astype(targets.dtype)))
                best = max(scores)
                # the middle of the winning stretch generalises better than its edge
                winners = [c for c, s in zip(candidates, scores, strict=True) if s >= best - 1e-12]
                thresholds[label] = 0.5 if 0.5 in winners else float(np.median(winners))
        return [round(float(t), 4) for t in thresholds]
