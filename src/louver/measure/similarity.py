"""How good embeddings are: rank correlation with what people say, and search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from louver.bundle import Bundle
from louver.errors import ModelError, OptionError
from louver.measure.intervals import RESAMPLES, Score, score
from louver.runtime import Predictor
from louver.tasks.metrics import spearman
from louver.tasks.similar import Similar
from louver.text import cutting


@dataclass(frozen=True)
class Similarity:
    """What embeddings of pairs reached.

    Attributes:
        metric: "spearman" of scored pairs, "mrr" (mean reciprocal rank) of a search where pairs have no scores.
        score: with its interval, over texts.
        beside: other figures of the search.
    """

    metric: str
    score: Score
    beside: dict[str, float]


def evaluate_pairs(
    bundle: Bundle, rows: Sequence[Similar], *, truncation: str | None = None, seed: int = 0
) -> Similarity:
    """Judge a bundle's embeddings by pairs of texts: against their scores, or by searching each first text's second.

    Args:
        bundle: of embeddings.
        rows: pairs.
        truncation: the bundle's own if None; ``error`` becomes ``head``, so that every text counts.
        seed: of the interval's resampling.

    Raises:
        OptionError: if the bundle gives no embeddings.
        ModelError: if they hold what is no number.
    """
    if bundle.card.task != "embed":
        raise OptionError(
            f"{bundle.path} gives no embeddings; pairs are for bundles that louver contrast or extend made"
        )
    texts = list(dict.fromkeys(text for row in rows for text in row.texts[:2]))
    places = {text: place for place, text in enumerate(texts)}
    pairs = [(places[row.texts[0]], places[row.texts[1]]) for row in rows]
    with Predictor(bundle, truncation=truncation or cutting(bundle.card.truncation)) as predictor:
        vectors = predictor.logits(texts)
    if not np.isfinite(vectors).all():
        raise ModelError(f"embeddings of {bundle.path} hold what is no number; run 'louver doctor' on it")
    if rows[0].score is not None:
        truth = np.asarray([row.score for row in rows], float)
        return Similarity("spearman", rank_correlation(truth, cosines(vectors, pairs), pairs, seed=seed), {})
    first, second = (np.unique(side) for side in np.asarray(pairs).T)
    right = np.zeros((len(texts), len(texts)), bool)
    right[tuple(np.asarray(pairs).T)] = True
    found = ranks(vectors[first], vectors[second], right[first][:, second])
    reciprocal = 1 / (found + 1)
    middle = score(lambda _, values: float(values.mean()), reciprocal, reciprocal, seed=seed)
    return Similarity("mrr", middle, {f"recall@{n}": float((found < n).mean()) for n in (1, 10)})


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
    values: list[list[float]] = []
    while len(values) < RESAMPLES:
        counts = np.bincount(rng.choice(texts, len(texts)), minlength=int(texts.max()) + 1)
        which = np.repeat(np.arange(len(pairs)), counts[first] * counts[second])
        if len(which):  # of few texts, both of no pair may be drawn
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
    found = ranks(queries, texts, np.eye(len(texts), dtype=bool))
    return {
        "recall@1": float((found < 1).mean()),
        "recall@10": float((found < 10).mean()),
        "mrr": float((1 / (found + 1)).mean()),
    }


def ranks(queries: np.ndarray, texts: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return how many wrong texts are nearer to each query than the nearest right one.

    One that is as near counts as a half: an encoder that gives every text the same vector finds nothing.

    Args:
        queries: (queries, width).
        texts: (texts, width).
        right: (queries, texts) bool; at least one text of each query.
    """
    unit = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (queries, texts)]
    scores = unit[0] @ unit[1].T
    best = np.where(right, scores, -np.inf).max(1)[:, None]
    close = 1e-6  # cosines of equal vectors differ by rounding
    nearer: np.ndarray = (~right & (scores > best + close)).sum(1) + (~right & (abs(scores - best) <= close)).sum(1) / 2
    return nearer
