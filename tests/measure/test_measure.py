from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from louver.bundle import Bundle
from louver.errors import OptionError
from louver.measure.baselines import Baseline
from louver.measure.evaluate import agreement, evaluate
from louver.measure.intervals import Score, difference, judge, relative_drop, score
from louver.measure.machine import describe, has_fast_bf16
from louver.measure.speed import peaks_of_memory, race, text_of_length
from louver.tasks import Columns, Example, read_examples
from louver.tasks.metrics import accuracy


def test_an_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        right = rng.random(150) < 0.7
        found = score(accuracy, np.ones(150), right.astype(float), seed=trial)
        inside += found.low <= 0.7 <= found.high
        assert found.n == 150
    assert 0.9 <= inside / 200 <= 0.99


def test_paired_drops() -> None:
    truth = np.ones(200)
    before, after = np.ones(200), np.ones(200)
    after[:20] = 0
    drop = relative_drop(accuracy, truth, before, after)
    assert drop.value == pytest.approx(0.1)
    assert 0.05 < drop.low < 0.1 < drop.high < 0.16
    assert difference(accuracy, truth, before, after).value == pytest.approx(-0.1)
    same = relative_drop(accuracy, truth, after, after)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    nothing = np.zeros(200)
    assert relative_drop(accuracy, truth, nothing, after).value == 1  # where nothing was scored, nothing is proven
    assert judge(relative_drop(accuracy, truth, nothing, nothing), 0.02).outcome == "fail"


def test_verdicts() -> None:
    assert judge(Score(0.01, 0.0, 0.02, 100), 0.05).outcome == "pass"
    assert judge(Score(0.2, 0.1, 0.3, 100), 0.05).outcome == "fail"
    close = judge(Score(0.03, -0.01, 0.07, 100), 0.05)
    assert (close.outcome, close.accepted, close.deciding_n) == ("undecided", True, 400)
    assert "about n = 400 would decide" in str(close)
    assert not judge(Score(0.06, -0.01, 0.1, 100), 0.05).accepted
    assert judge(Score(0.05, 0.0, 0.1, 100), 0.05).deciding_n is None


def test_machine() -> None:
    found = describe()
    assert found["cores"] >= 1
    assert found["gemm_gflops"] > 0


@pytest.mark.parametrize(("flags", "fast"), [({"avx512f", "avx512_bf16"}, False), ({"avx512_bf16", "amx_bf16"}, True)])
def test_bf16_counts_where_it_is_faster(flags: set[str], fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-512's bf16 products take longer than float32's; AMX's do not."""
    monkeypatch.setattr("louver.measure.machine.cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert has_fast_bf16() == fast


def test_evaluation_reads_the_card(tuned: Bundle, exported: Bundle, long_bundle: Bundle, colours: Path) -> None:
    examples = [e for e, _ in read_examples(colours, Columns())][:60]
    found = evaluate(tuned, examples)
    assert (found.metric, found.score.n) == ("accuracy", 60)
    assert found.score.value > 0.8
    assert agreement(found.decisions, evaluate(exported, examples).decisions) == 1
    assert agreement(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]])) == 0.5
    with pytest.raises(OptionError, match="gives embeddings, which have no labels to score"):
        evaluate(long_bundle, examples)


def test_baselines_answer_like_the_predictor_where_they_read_the_same(tuned: Bundle, colours: Path) -> None:
    examples: list[Example] = [e for e, _ in read_examples(colours, Columns())][:10]
    ours = evaluate(tuned, examples).logits
    for kind in ("truncated", "windows", "dense"):
        baseline = Baseline(tuned, kind, max_length=64, batch_size=4)
        found = baseline.logits([e.text for e in examples])
        assert np.abs(found - ours).max() < 1e-4


def test_windows_and_truncation_differ_on_long_texts(tuned: Bundle) -> None:
    text = "red rose " * 20 + "sea sky ice " * 60
    first = Baseline(tuned, "truncated", max_length=32).logits([text])
    assert np.abs(first - Baseline(tuned, "truncated", max_length=32).logits(["red rose " * 20])).max() < 1e-4
    assert np.abs(first - Baseline(tuned, "windows", max_length=32).logits([text])).max() > 1e-3


def test_a_race_takes_turns() -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def logits(self, texts: object) -> np.ndarray:
            order.append(self.name)
            return np.zeros((1, 1))

    found = race({"a": Fake("a"), "b": Fake("b")}, ["x", "y"], {512: "x"}, rounds=2)
    assert order == ["a", "b", "a", "a", "b", "b", "a", "a", "b", "b"]
    assert found["a"].p50_ms[512] is not None
    assert found["a"].p50_ms[4096] is None


def test_texts_of_a_length() -> None:
    text = text_of_length(["one two three", "four five six seven"], 6, lambda t: len(t.split()) + 2)
    assert text == "one two three four "
    assert text_of_length(["a b"], 7, lambda t: len(t.split()) + 2) == "a b a b a "
    assert text_of_length(["没有空格的文字"], 6, lambda t: len(t) + 2) == "没有空格"


def hold(*megabytes: int) -> Iterator[None]:
    for count in megabytes:
        bytearray(count * 1_000_000)
        yield


def test_peak_memory_is_the_work_own_after_each_step() -> None:
    ballast = bytearray(300_000_000)
    small, same, large = peaks_of_memory(hold, 1, 1, 200)
    assert small is not None
    assert same is not None
    assert large is not None
    assert 150 < large - small < 260
    assert small <= same < small + 20
    assert small < 700
    del ballast


def end_at_once() -> Iterator[None]:
    yield
    os._exit(9)


def test_a_killed_process_has_the_peaks_it_came_to() -> None:
    assert len(peaks_of_memory(end_at_once)) == 1
