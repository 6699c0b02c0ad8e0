"""Scores of predictions against the truth. Each takes (truth, predicted), so that intervals can resample them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from louver.errors import OptionError, need_extra, unknown

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of texts with the right label."""
    return float(np.mean(truth == predicted))


def exact_match(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of texts with exactly the right set of labels."""
    return float(np.mean(np.all(truth == predicted, axis=-1)))


def _f1(average: str) -> Metric:
    def score(truth: np.ndarray, predicted: np.ndarray) -> float:
        need_extra("train", "sklearn")
        from sklearn.metrics import f1_score

        return float(f1_score(truth, predicted, average=average, zero_division=0))

    score.__doc__ = f"F1, {average} average (scikit-learn)."
    return score


def r2(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance explained."""
    spread = float(np.sum((truth - truth.mean()) ** 2))
    return 1.0 - float(np.sum((truth - predicted) ** 2)) / spread if spread else 0.0


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Rank correlation (SciPy)."""
    need_extra("train", "scipy")
    from scipy.stats import spearmanr

    if np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.0
    return float(spearmanr(truth, predicted).statistic)


METRICS: dict[str, dict[str, Metric]] = {
    "single": {"accuracy": accuracy, "macro_f1": _f1("macro")},
    "multi": {"exact_match": exact_match, "micro_f1": _f1("micro"), "macro_f1": _f1("macro")},
    "regression": {"r2": r2, "spearman": spearman},
}
"""By kind of classification; the first of each is its default."""


def metric(kind: str, name: str | None = None) -> tuple[str, Metric]:
    """Return a metric and its name; the kind's default if no name is given.

    Raises:
        OptionError: if the kind does not know the metric.
    """
    known = METRICS[kind]
    chosen = name or next(iter(known))
    if chosen not in known:
        raise OptionError(unknown(f"metric for {kind} labels", chosen, known))
    return chosen, known[chosen]
