"""`probe`: the best linear head on frozen states, as the start of fine-tuning (Kumar et al. 2022, section 4).

Costs one forward pass over the texts; the fit itself is scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from louver.encoders.pooling import Reader
from louver.tasks import Classification
from louver.tasks.metrics import Metric
from louver.training.fit import Feature, answers

STRENGTHS = (0.01, 0.1, 1.0)
"""Inverse regularisations tried on validation."""


def probe(
    reader: Reader,
    task: Classification,
    train: Sequence[Feature],
    validation: Sequence[Feature],
    truth: np.ndarray,
    score: Metric,
    *,
    pad_id: int,
) -> dict[str, Any]:
    """Put the head into a reader that fits its frozen states best.

    Args:
        reader: its head is replaced in place, its encoder is not touched.
        task: what is learned.
        train: features with ``input_ids`` and ``labels``.
        validation: features; the strength of regularisation is chosen on them.
        truth: targets of validation.
        score: that chooses.
        pad_id: id of padding.

    Returns:
        The chosen strength and its validation score.
    """
    assert reader.head is not None
    states = answers(reader, train, pad_id, ask=reader.pooled)
    held = answers(reader, validation, pad_id, ask=reader.pooled)
    labels = np.stack([feature["labels"] for feature in train])
    mean, spread = states.mean(0), states.std(0) + 1e-6
    best: tuple[float, float, np.ndarray, np.ndarray] | None = None
    for strength in STRENGTHS:
        weight, bias = _fit(task, (states - mean) / spread, labels, strength)
        weight = weight / spread  # the scaling becomes part of the head
        bias = bias - weight @ mean
        found = score(truth, task.decisions(held @ weight.T + bias))
        if best is None or found > best[0]:
            best = (found, strength, weight, bias)
    assert best is not None
    with torch.no_grad():
        reader.head.weight.copy_(torch.from_numpy(best[2]))
        reader.head.bias.copy_(torch.from_numpy(best[3]))
    return {"strength": best[1], "score": round(best[0], 4)}


def _fit(
    task: Classification, states: np.ndarray, labels: np.ndarray, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (outputs, width) and bias (outputs,) of a linear model."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if task.kind == "regression":
        model = Ridge(alpha=1 / strength).fit(states, labels)
        return model.coef_[None], np.asarray([model.intercept_])
    if task.kind == "multi":
        pairs = [LogisticRegression(C=strength, max_iter=2000).fit(states, column) for column in labels.T]
        return np.concatenate([m.coef_ for m in pairs]), np.concatenate([m.intercept_ for m in pairs])
    model = LogisticRegression(C=strength, max_iter=2000).fit(states, labels)
    weight, bias = model.coef_, model.intercept_
    if len(task.labels) == 2:  # one column for two classes: split it into two logits
        return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight, bias
