from __future__ import annotations

import pytest

from louver.errors import OptionError
from louver.measure.attention import bench


@pytest.mark.parametrize(
    ("pattern", "pairs"), [("topk(64)", 200 * 64), ("lsh(8)", 2 * 200 * 128), ("nystrom(8)", 3200)]
)
def test_selectors_and_approximations_are_raced_too_and_tell_their_distance(pattern: str, pairs: int) -> None:
    rows = bench(pattern, [200], head_dim=8, rounds=1, memory=False)
    assert [row.impl for row in rows] == ["sdpa", "eager", "auto"]
    assert rows[2].pair_ratio == pytest.approx(200**2 / pairs, abs=1e-3)
    assert rows[2].max_error > 1e-3  # to exact attention
    assert rows[0].max_error < 1e-5


def test_backends_that_refuse_are_left_out() -> None:
    rows = bench(
        "heads({2: full, inf: window(9)})",
        [100],
        head_dim=8,
        impls=("dense", "gathered", "flash"),
        rounds=1,
        memory=False,
    )
    assert [row.impl for row in rows] == ["sdpa", "eager", "dense"]


def test_a_pattern_without_pairs_is_refused() -> None:
    with pytest.raises(OptionError, match="allows no pair at 300 tokens; give a longer text"):
        bench("window(3) & global(positions=[500])", [300], rounds=1, memory=False)
