"""Scores of predictions against the truth. Each takes (truth, predicted), so that intervals can resample them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from louver.decode import Span
from louver.errors import OptionError, need_extra, unknown
from louver.text.scripts import is_hangul, is_ideograph

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


def _span_counts(truth: np.ndarray, predicted: np.ndarray) -> tuple[int, int, int]:
    """Return how many spans are right (ends and type), how many were found, how many there are."""
    right = sum(len(set(a) & set(b)) for a, b in zip(truth, predicted, strict=True))
    return right, sum(map(len, predicted)), sum(map(len, truth))


def span_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """F1 over all spans: right where both ends and the type are (Tjong Kim Sang & De Meulder 2003)."""
    right, found, there = _span_counts(truth, predicted)
    return 2 * right / (found + there) if found + there else 1.0


def span_precision(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the spans found that are right."""
    right, found, _ = _span_counts(truth, predicted)
    return right / found if found else 0.0


def span_recall(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the spans there that were found."""
    right, _, there = _span_counts(truth, predicted)
    return right / there if there else 1.0


def answer_exact(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of questions with exactly one of the right answers, or rightly with none (Rajpurkar et al. 2018)."""
    return float(np.mean([_best(_same, spans, text) for spans, text in zip(truth, predicted, strict=True)]))


def answer_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean overlap in words with the nearest right answer (Rajpurkar et al. 2016, section 6.1)."""
    return float(np.mean([_best(_overlap, spans, text) for spans, text in zip(truth, predicted, strict=True)]))


def _best(compare: Callable[[list[str], list[str]], float], spans: Sequence[Span], text: str) -> float:
    if not spans or not text:
        return float(not spans and not text)
    return max(compare(_words(span.label), _words(text)) for span in spans)


def _same(a: list[str], b: list[str]) -> float:
    return float(a == b)


def _overlap(a: list[str], b: list[str]) -> float:
    shared = sum((Counter(a) & Counter(b)).values())
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def _words(text: str) -> list[str]:
    """Return an answer's words as SQuAD compares them, without signs and articles; Chinese by character."""
    spaced = "".join(f" {c} " if is_ideograph(c) or is_hangul(c) else c if c.isalnum() else " " for c in text.lower())
    return [word for word in spaced.split() if word not in ("a", "an", "the")]


METRICS: dict[str, dict[str, Metric]] = {
    "single": {"accuracy": accuracy, "macro_f1": _f1("macro")},
    "multi": {"exact_match": exact_match, "micro_f1": _f1("micro"), "macro_f1": _f1("macro")},
    "regression": {"r2": r2, "spearman": spearman},
    "tag": {"f1": span_f1, "precision": span_precision, "recall": span_recall},
    "answer": {"f1": answer_f1, "exact_match": answer_exact},
}
"""By kind of task; the first of each is its default."""


def _called(kind: str) -> str:
    return {"tag": "tagging", "answer": "answers"}.get(kind, f"{kind} labels")


def metric(kind: str, name: str | None = None) -> tuple[str, Metric]:
    """Return a metric and its name; the kind's default if no name is given.

    Raises:
        OptionError: if the kind of task does not know the metric.
    """
    known = METRICS[kind]
    chosen = name or next(iter(known))
    if chosen not in known:
        raise OptionError(unknown(f"metric for {_called(kind)}", chosen, known))
    return chosen, known[chosen]
