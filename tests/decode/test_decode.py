from __future__ import annotations

import numpy as np
import pytest
import torch

from louver.bundle import Card
from louver.decode import decide, decode, pool_windows, probabilities


def test_probabilities_equal_torch() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 5)) * 30
    np.testing.assert_allclose(probabilities(logits, "single"), torch.from_numpy(logits).softmax(-1), atol=1e-12)
    np.testing.assert_allclose(probabilities(logits, "multi"), torch.from_numpy(logits).sigmoid(), atol=1e-12)
    assert np.isfinite(probabilities(np.array([1e4, -1e4]), "multi")).all()


def test_predictions() -> None:
    sizes = {"max_length": 8, "original_length": 8}
    single = Card(task="classify", kind="single", labels=["a", "b"], **sizes)
    found = decode(np.array([0.0, 1.0]), single, read=5, cut=2)
    assert (found.label, found.tokens_read, found.tokens_cut) == ("b", 5, 2)
    assert found.scores == pytest.approx({"a": 0.2689, "b": 0.7311}, abs=1e-4)
    multi = Card(task="classify", kind="multi", labels=["a", "b"], thresholds=[0.5, 0.9], **sizes)
    assert decode(np.array([1.0, 1.0]), multi, 1, 0).labels == ("a",)
    number = Card(task="classify", kind="regression", **sizes)
    assert decode(np.array([2.5]), number, 1, 0).value == 2.5
    vector = decode(np.array([3.0, 4.0]), Card(**sizes), 1, 0).embedding
    assert vector is not None
    assert vector.tolist() == pytest.approx([0.6, 0.8])
    assert decode(np.array([0.0, 1.0]), single, 5, 2).to_row()["error"] is None
    assert set(found.to_row()) == {"label", "scores", "tokens_read", "tokens_cut", "error"}


def test_windows_are_pooled() -> None:
    logits = np.array([[0.0, 3.0], [3.0, 0.0]])
    assert pool_windows(logits, [1, 2], "single").tolist() == [2, 1]
    assert pool_windows(logits, [1, 2], "multi").tolist() == [3, 3]
    assert decide(logits, "single").tolist() == [1, 0]
