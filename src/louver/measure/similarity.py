"""How good embeddings are: rank correlation with what people say, and search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from louver.measure.intervals import RESAMPLES, Score
from louver.tasks.metrics import spearman


def cosines(vectors: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the cosine of each pair.

    Args:
        vectors: (texts, width).
        pairs: indices into them.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    first, second = np.asarray(pairs).T
    found: np.ndarray = (unit[first] * unit[second]).sum(1)
    return found


def rank_correlation(truth: np.ndarray, found: np.ndarray, pairs: Sequence[tuple[int, int]], *, seed: int = 0) -> Score:
    """Return Spearman's correlation with an interval over texts: pairs that share a text are not independent.

    Args:
        truth: (pairs,) what people say.
        found: (pairs,) cosines.
        pairs: indices of the texts of each pair.
        seed: of the resampling.
    """
    low, high = np.percentile([value for (value,) in _resampled(truth, [found], pairs, seed)], [2.5, 97.5])
    return Score(spearman(truth, found), float(low), float(high), len(np.unique(np.asarray(pairs))))


def rank_difference(
    truth: np.ndarray, before: np.ndarray, after: np.ndarray, pairs: Sequence[tuple[int, int]], *, seed: int = 0
) -> Score:
    """Return the gain of Spearman's correlation, paired, with an interval over texts."""
    gains = [b - a for a, b in _resampled(truth, [before, after], pairs, seed)]
    low, high = np.percentile(gains, [2.5, 97.5])
    gain = spearman(truth, after) - spearman(truth, before)
    return Score(gain, float(low), float(high), len(np.unique(np.asarray(pairs))))


def _resampled(
    truth: np.ndarray, found: list[np.ndarray], pairs: Sequence[tuple[int, int]], seed: int
) -> list[list[float]]:
    """Draw texts with replacement; a pair counts as often as both its texts were drawn together."""
    rng = np.random.default_rng(seed)
    first, second = np.asarray(pairs).T
    texts = np.unique(np.asarray(pairs))
    values = []
    for _ in range(RESAMPLES):
        counts = np.bincount(rng.choice(texts, len(texts)), minlength=int(texts.max()) + 1)
        which = np.repeat(np.arange(len(pairs)), counts[first] * counts[second])
        values.append([spearman(truth[which], one[which]) for one in found])
    return values


def search(queries: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """Search each query's own text among all.

    Args:
        queries: (n, width).
        texts: (n, width); the text of query i is text i.

    Returns:
        ``recall@1``, ``recall@10`` and the mean reciprocal rank ``mrr``.
    """
    unit = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (queries, texts)]
    scores = unit[0] @ unit[1].T
    ranks = (scores > np.diag(scores)[:, None]).sum(1)
    return {
        "recall@1": float((ranks < 1).mean()),
        "recall@10": float((ranks < 10).mean()),
        "mrr": float((1 / (ranks + 1)).mean()),
    }
