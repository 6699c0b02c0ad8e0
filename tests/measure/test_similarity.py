from __future__ import annotations

import itertools

import numpy as np
import pytest

from louver.bundle import Bundle
from louver.errors import OptionError
from louver.measure.similarity import cosines, evaluate_pairs, rank_correlation, rank_difference, ranks, search
from louver.runtime import Predictor
from louver.tasks.metrics import spearman
from louver.tasks.similar import Similar


def test_cosines_and_search() -> None:
    vectors = np.asarray([[1.0, 0], [2, 0], [0, 3], [-1, 0]])
    assert cosines(vectors, [(0, 1), (0, 2), (0, 3)]).tolist() == [1, 0, -1]
    texts = np.eye(12)
    assert search(texts, texts) == {"recall@1": 1.0, "recall@10": 1.0, "mrr": 1.0}
    far = search(np.roll(texts, 1, axis=0), texts)  # every query is nearest to another's text
    assert far["recall@1"] == 0
    assert far["mrr"] == pytest.approx(1 / (1 + 1 + 10 / 2))  # one is nearer, ten are as near as its own


def test_a_collapsed_encoder_finds_nothing_and_several_partners_are_all_right() -> None:
    same = np.ones((11, 4))
    assert search(same, same)["recall@1"] == 0
    assert search(same, same)["mrr"] == pytest.approx(1 / 6)
    right = np.asarray([[True, True, False], [False, False, True]])
    texts = np.asarray([[0.0, 1], [1, 1], [1, 0]])
    assert ranks(np.asarray([[0.1, 1.0], [1.0, 0.1]]), texts, right).tolist() == [0, 0]


def test_a_bundle_is_judged_by_pairs(long_bundle: Bundle, tuned: Bundle) -> None:
    """As by hand."""
    rows = [Similar(("red", "crimson red")), Similar(("blue sea", "blue")), Similar(("moss", "green grass"))]
    with Predictor(long_bundle) as predictor:
        vectors = {t: predictor.logits([t])[0] for row in rows for t in row.texts}
    first, second = (np.stack([vectors[row.texts[i]] for row in rows]) for i in (0, 1))
    found = evaluate_pairs(long_bundle, rows)
    assert (found.metric, found.score.n) == ("mrr", 3)
    assert {"mrr": found.score.value, **found.beside} == pytest.approx(search(first, second))
    scored = evaluate_pairs(long_bundle, [Similar(row.texts, i) for i, row in enumerate(rows)])
    assert scored.metric == "spearman"
    assert scored.score.value == pytest.approx(
        spearman(np.arange(3.0), cosines(np.concatenate([first, second]), [(0, 3), (1, 4), (2, 5)]))
    )
    with pytest.raises(OptionError, match="gives no embeddings; pairs are for bundles that louver contrast or extend"):
        evaluate_pairs(tuned, rows)


def test_intervals_go_by_texts() -> None:
    """Pairs share texts, so an interval over pairs would be far too narrow."""
    rng = np.random.default_rng(0)
    pairs = list(itertools.combinations(range(30), 2))
    effect = rng.normal(size=30)  # some texts are liked by everybody
    truth = np.asarray([effect[a] + effect[b] for a, b in pairs]) + rng.normal(size=len(pairs))
    found = truth + 3 * rng.normal(size=len(pairs))
    by_text = rank_correlation(truth, found, pairs)
    by_pair = [np.corrcoef(truth[i], found[i])[0, 1] for i in rng.integers(0, len(pairs), (300, len(pairs)))]
    assert by_text.low < by_text.value < by_text.high
    assert by_text.n == 30
    assert by_text.high - by_text.low > np.ptp(np.percentile(by_pair, [2.5, 97.5]))
    better = rank_difference(truth, found, truth, pairs)
    assert better.low > 0
    none = rank_difference(truth, found, found, pairs)
    assert (none.low, none.value, none.high) == (0, 0, 0)
