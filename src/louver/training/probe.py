"""`probe`: the best linear head on frozen states, as the start of fine-tuning (Kumar et al. 2022, section 4).

Costs one forward pass over the texts; the fit itself is scikit-learn's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from louver.encoders.pooling import Reader
from louver.tasks import Classification, Features
from louver.tasks.metrics import Metric

_NEVER = -10.0
"""Logit of a label that training never has."""

STRENGTHS = (0.01, 0.1, 1.0)
"""Inverse regularisations tried on validation."""


@dataclass(frozen=True)
class Probe:
    """A linear head on frozen states.

    Attributes:
        strength: inverse regularisation that was chosen.
        score: of its decisions on validation, at plain thresholds.
        logits: (texts, outputs) of validation.
    """

    strength: float
    score: float
    logits: np.ndarray

    def to_json(self) -> dict[str, float]:
        """Return what a bundle's history keeps."""
        return {"strength": self.strength, "score": round(self.score, 4)}


def probe(
    reader: Reader,
    task: Classification,
    train: Features,
    validation: Features,
    truth: np.ndarray,
    score: Metric,
    class_weights: np.ndarray | None = None,
) -> Probe:
    """Put the head into a reader that fits its frozen states best.

    Args:
        reader: its head is replaced in place, its encoder is not touched.
        task: what is learned.
        train: what the head learns from.
        validation: the strength of regularisation is chosen on them.
        truth: targets of validation.
        score: that chooses.
        class_weights: weight of each class, or of each label's rows that have it; alike if None.

    Returns:
        What was found; the head is in the reader.
    """
    assert reader.head is not None
    states = np.stack(train.answers(reader, ask=reader.pooled))
    held = np.stack(validation.answers(reader, ask=reader.pooled))
    labels = train.labels
    mean, spread = states.mean(0), states.std(0) + 1e-6
    best: Probe | None = None
    head: tuple[np.ndarray, np.ndarray] | None = None
    for strength in STRENGTHS:
        weight, bias = _fit(task, (states - mean) / spread, labels, strength, class_weights)
        weight = weight / spread  # the scaling becomes part of the head
        bias = bias - weight @ mean
        logits = validation.join(held @ weight.T + bias)
        found = Probe(strength, score(truth, task.decisions(logits)), logits)
        if best is None or found.score > best.score:
            best, head = found, (weight, bias)
    assert best is not None
    assert head is not None
    with torch.no_grad():
        reader.head.weight.copy_(torch.from_numpy(head[0]))
        reader.head.bias.copy_(torch.from_numpy(head[1]))
    return best


def _fit(
    task: Classification, states: np.ndarray, labels: np.ndarray, strength: float, class_weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (outputs, width) and bias (outputs,) of a linear model."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if task.kind == "regression":
        model = Ridge(alpha=1 / strength).fit(states, labels)
        return model.coef_[None], np.asarray([model.intercept_])
    if task.kind == "multi":
        weights = np.ones(labels.shape[1]) if class_weights is None else class_weights
        pairs = [_one_against_rest(states, c, strength, w) for c, w in zip(labels.T, weights, strict=True)]
        return np.stack([weight for weight, _ in pairs]), np.asarray([bias for _, bias in pairs])
    # a class that training lacks (a teacher may know it) keeps a head that never wins
    weight = np.zeros((len(task.labels), states.shape[1]))
    bias = np.full(len(task.labels), _NEVER)
    seen = np.unique(labels)
    if len(seen) == 1:
        bias[seen] = 0.0
        return weight, bias
    of_rows = None if class_weights is None else class_weights[labels]
    model = LogisticRegression(C=strength, max_iter=2000).fit(states, labels, sample_weight=of_rows)
    found, at = model.coef_, model.intercept_
    if len(seen) == 2:  # one column for two classes: split it into two logits
        found, at = np.concatenate([-found, found]) / 2, np.concatenate([-at, at]) / 2
    weight[model.classes_], bias[model.classes_] = found, at
    return weight, bias


def _one_against_rest(
    states: np.ndarray, column: np.ndarray, strength: float, positive: float
) -> tuple[np.ndarray, float]:
    """Fit one label of several; of a label that every row has, or none, all that can be learned is that."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(column)) == 1:
        return np.zeros(states.shape[1]), -_NEVER if column[0] else _NEVER
    of_rows = np.where(column > 0, positive, 1.0)
    model = LogisticRegression(C=strength, max_iter=2000).fit(states, column, sample_weight=of_rows)
    return model.coef_[0], float(model.intercept_[0])
