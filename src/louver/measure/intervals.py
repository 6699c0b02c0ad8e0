"""Scores with intervals, and drops between models that answered the same texts.

Percentile bootstrap over texts (Efron & Tibshirani 1993, chapter 13); comparisons are paired: both models are scored
on the same resampled texts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from louver.tasks.metrics import Metric

RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """A value with its 95 % interval.

    Attributes:
        value: on all texts.
        low: 2.5th percentile.
        high: 97.5th percentile.
        n: texts.
    """

    value: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """Return the fields, rounded to four places."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def score(metric: Metric, truth: np.ndarray, predicted: np.ndarray, *, seed: int = 0) -> Score:
    """Score predictions with an interval.

    Args:
        metric: function of (truth, predicted).
        truth: (n, …).
        predicted: (n, …).
        seed: of the resampling.
    """
    values = [metric(truth[i], predicted[i]) for i in _resamples(len(truth), seed)]
    low, high = np.percentile(values, [2.5, 97.5])
    return Score(metric(truth, predicted), float(low), float(high), len(truth))


def relative_drop(metric: Metric, truth: np.ndarray, before: np.ndarray, after: np.ndarray, *, seed: int = 0) -> Score:
    """Return (before - after) / before with an interval over the same resampled texts; negative is a gain.

    Where `before` scores nothing there is no share to lose: that counts as all lost, so that no gate passes on it.
    """

    def drop(index: np.ndarray | slice) -> float:
        base = metric(truth[index], before[index])
        return (base - metric(truth[index], after[index])) / abs(base) if base else 1.0

    low, high = np.percentile([drop(i) for i in _resamples(len(truth), seed)], [2.5, 97.5])
    return Score(drop(slice(None)), float(low), float(high), len(truth))


def difference(metric: Metric, truth: np.ndarray, before: np.ndarray, after: np.ndarray, *, seed: int = 0) -> Score:
    """Return after - before with a paired interval; positive is a gain."""

    def gain(index: np.ndarray | slice) -> float:
        return metric(truth[index], after[index]) - metric(truth[index], before[index])

    low, high = np.percentile([gain(i) for i in _resamples(len(truth), seed)], [2.5, 97.5])
    return Score(gain(slice(None)), float(low), float(high), len(truth))


def _resamples(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))


@dataclass(frozen=True)
class Verdict:
    """Whether a drop is inside a budget.

    Attributes:
        outcome: "pass" if the whole interval is inside the budget, "fail" if it is outside, else "undecided".
        drop: the relative drop.
        budget: the largest drop allowed.
        deciding_n: texts that would decide an undecided one at this value; None if decided, or if the value is the
            budget.
    """

    outcome: Literal["pass", "fail", "undecided"]
    drop: Score
    budget: float
    deciding_n: int | None = None

    @property
    def accepted(self) -> bool:
        """Pass, or undecided with a value inside the budget."""
        return self.outcome == "pass" or (self.outcome == "undecided" and self.drop.value <= self.budget)

    def __str__(self) -> str:
        text = f"{self.outcome}: drop {self.drop.value:.1%} [{self.drop.low:.1%}, {self.drop.high:.1%}], "
        text += f"budget {self.budget:.1%}, n = {self.drop.n}"
        return text if self.deciding_n is None else f"{text}; about n = {self.deciding_n} would decide"


def judge(drop: Score, budget: float) -> Verdict:
    """Hold a drop against a budget.

    Args:
        drop: relative drop with its interval.
        budget: the largest relative drop allowed.
    """
    if drop.high <= budget:
        return Verdict("pass", drop, budget)
    if drop.low > budget:
        return Verdict("fail", drop, budget)
    # the interval's half-width shrinks with the root of n
    half = drop.high - drop.value if drop.value <= budget else drop.value - drop.low
    room = abs(budget - drop.value)
    n = math.ceil(drop.n * (half / room) ** 2) if room > 1e-9 else None
    return Verdict("undecided", drop, budget, n)
