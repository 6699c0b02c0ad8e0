from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import composed

import louver
from louver.errors import PatternError
from louver.patterns import (
    REGISTRY,
    BigBird,
    Blocks,
    Causal,
    Every,
    Full,
    Global,
    Kept,
    Longformer,
    Pattern,
    Prefix,
    Random,
    Strided,
    Window,
    Window2D,
    by_length,
    every,
    from_json,
    parse,
    to_json,
)
from louver.patterns.hashing import hashed
from louver.patterns.picture import png, terminal

STRINGS = [
    "full",
    "causal",
    "window(128)",
    "window(left=256, right=0)",
    "window(4, dilation=3)",
    "global(1)",
    "global(positions=[0, 9])",
    "blocks(64)",
    "blocks(64, neighbours=3)",
    "window(128) | global(1)",
    "causal & window(100) | global(2)",
    "(window(2) | global(1)) & causal",
    "every(3, full, else_=window(64))",
    "by_length({512: full, inf: window(128) | global(1)})",
    "heads({2: full, inf: window(64)})",
    "by_length({512: full, inf: heads({1: global(1), 4: window(9), inf: blocks(8)})})",
    "strided(64)",
    "strided(64, local=0)",
    "causal & strided(32, local=8)",
    "random(64)",
    "random(16, blocks=2, seed=7)",
    "longformer",
    "longformer(128, tokens=2)",
    "bigbird",
    "bigbird(32, random=2, tokens=1)",
    "axial(14)",
    "window2d(14)",
    "window2d(14, radius=2, extra=5)",
    "prefix(16)",
    "prefix(16) & window(64)",
    "window(128) & kept(0.3, seed=7)",
    "topk(512)",
    "topk(256, rank=8, block=32) & causal",
    "lsh(16)",
    "lsh(8, rounds=4, width=32, seed=3)",
    "nystrom",
    "nystrom(32, iterations=4)",
]


@pytest.mark.parametrize("text", STRINGS)
def test_string_and_json_round_trip(text: str) -> None:
    pattern = louver.parse(text)
    assert str(pattern) == text
    assert parse(str(pattern)) == pattern
    assert from_json(to_json(pattern)) == pattern
    assert hash(from_json(to_json(pattern))) == hash(pattern)


@given(composed)
def test_any_composition_round_trips(pattern: Pattern) -> None:
    assert parse(str(pattern)) == pattern
    assert from_json(to_json(pattern)) == pattern


def test_equal_meanings_are_equal() -> None:
    assert Window(5) == Window(left=5, right=5)
    assert Global(2) == Global(positions=(1, 0))
    assert (Window(5) | Global(1)) | Causal() == Window(5) | (Global(1) | Causal())
    assert Window(5) | Window(5) == parse("window(5)") | Window(5)


def grid_neighbours(q: int, k: int, *, width: int, radius: int, extra: int) -> bool:
    if q < extra or k < extra:
        return True
    rows = {p: (p - extra) // width for p in (q, k)}
    return abs(rows[q] - rows[k]) <= radius and abs((q - extra) % width - (k - extra) % width) <= radius


def brute(rule: object, length: int) -> np.ndarray:
    assert callable(rule)
    return np.array([[bool(rule(q, k)) for k in range(length)] for q in range(length)])


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 31, 32, 33])
def test_pairs_equal_the_rule_in_words(length: int) -> None:
    rules: list[tuple[Pattern, object]] = [
        (Full(), lambda q, k: True),
        (Causal(), lambda q, k: k <= q),
        (Window(6), lambda q, k: abs(q - k) <= 6),
        (Window(left=3, right=1), lambda q, k: -3 <= k - q <= 1),
        (Window(2, dilation=3), lambda q, k: abs(q - k) in (0, 3, 6)),
        (Global(2), lambda q, k: q < 2 or k < 2),
        (Global(positions=(0, 5)), lambda q, k: q in (0, 5) or k in (0, 5)),
        (Blocks(8, 1), lambda q, k: abs(q // 8 - k // 8) <= 1),
        (Window(2) | Global(1), lambda q, k: abs(q - k) <= 2 or q == 0 or k == 0),
        (Window(2) & Causal(), lambda q, k: 0 <= q - k <= 2),
        (Strided(7, local=2), lambda q, k: abs(q - k) <= 2 or (q - k) % 7 == 0),
        (Strided(4) & Causal(), lambda q, k: k <= q and (q - k <= 4 or (q - k) % 4 == 0)),
        (Prefix(3), lambda q, k: k <= q or k < 3),
        (Longformer(4, tokens=2), lambda q, k: abs(q - k) <= 4 or q < 2 or k < 2),
        (parse("axial(5, extra=2)"), lambda q, k: q < 2 or k < 2 or (q - 2) // 5 == (k - 2) // 5 or (q - k) % 5 == 0),
        (Window2D(5, extra=2), lambda q, k: grid_neighbours(q, k, width=5, radius=1, extra=2)),
    ]
    for pattern, rule in rules:
        np.testing.assert_array_equal(pattern.mask(length), brute(rule, length), str(pattern))


@settings(max_examples=150, deadline=None)
@given(composed, st.integers(1, 90), st.sampled_from([4, 16, 32]))
def test_layout_holds_exactly_the_allowed_pairs(pattern: Pattern, length: int, block: int) -> None:
    mask = pattern.mask(length)
    layout = pattern.layout(length, block)
    assert layout.allowed_pairs == mask.sum()
    if layout.dense:
        return
    covered = np.zeros((length, length), bool)
    for index, table in enumerate(layout.key_blocks):
        for number, full in zip(table, layout.full[index], strict=True):
            if number < 0:
                continue
            part = (slice(index * block, (index + 1) * block), slice(number * block, (number + 1) * block))
            covered[part] = True
            assert not full or mask[part].all()
    covered[:, list(layout.columns)] = True
    covered[list(layout.rows)] = True
    if layout.stride:
        places = np.arange(length)
        covered |= (places[:, None] - places[None, :]) % layout.stride == 0
    assert not (mask & ~covered).any()
    assert layout.computed_pairs <= length**2


def test_layout_of_a_bounded_pattern_stays_small() -> None:
    layout = parse("window(128) | global(1)").layout(65_536)
    assert layout.key_blocks.shape == (512, 3)
    assert layout.columns == layout.rows == (0,)


def test_a_pattern_without_bounds_gets_a_layout_by_itself() -> None:
    class Odd(Pattern):
        def allows(self, queries: np.ndarray, keys: np.ndarray, length: int) -> np.ndarray:
            return np.asarray((abs(queries - keys) <= 3) | (keys == 7) | (queries + keys == 99))

    from louver.patterns.layout import plan

    layout = plan.__wrapped__(Odd(), 100, 16)
    assert layout.columns == (7,)
    assert layout.allowed_pairs == Odd().mask(100).sum()


def test_cost_counts_pairs() -> None:
    pattern = parse("window(6) | global(1)")
    cost = pattern.cost(64, heads=2, head_dim=8, block=16)
    assert cost.pairs == pattern.mask(64).sum()
    assert cost.flops == 4 * 2 * 8 * cost.computed_pairs
    assert cost.dense_flops == 4 * 2 * 8 * 64 * 64
    assert cost.pair_ratio == pytest.approx(64 * 64 / cost.pairs)
    assert Full().cost(64).pairs == 64 * 64


def test_cost_of_a_schedule_is_the_mean_of_its_layers() -> None:
    cost = parse("every(3, full, else_=window(6))").cost(64)
    assert cost.pairs == (64 * 64 + 2 * Window(6).cost(64).pairs) // 3
    assert cost.pair_ratio == pytest.approx(64 * 64 / cost.pairs)


def test_schedules_read_strings() -> None:
    assert every(3, "full", else_="window(64)") == every(3, Full(), else_=Window(64))
    assert by_length({512: "full", "inf": "window(8)"}) == by_length({512: Full(), "inf": Window(8)})
    with pytest.raises(PatternError, match=r"every takes patterns, got Full\(\) and 'window\(64\)'"):
        Every(3, Full(), "window(64)")  # type: ignore[arg-type]
    with pytest.raises(PatternError, match="a pattern is a string or a Pattern, got None"):
        parse(None)  # type: ignore[arg-type]


def test_schedules_resolve() -> None:
    pattern = every(3, Full(), else_=Window(64))
    assert [str(pattern.resolve(layer)) for layer in range(4)] == ["full", "window(64)", "window(64)", "full"]
    lengths = by_length({512: Full(), "inf": pattern})
    assert lengths.at(512) == Full()
    assert lengths.at(513) == pattern
    assert (lengths | Global(1)).at(600).resolve(1) == Window(64) | Global(1)
    with pytest.raises(PatternError, match="has other pairs in each layer"):
        pattern.allows(np.arange(3), np.arange(3), 3)


def test_a_wide_window_is_full_and_missing_globals_are_ignored() -> None:
    assert Window(100).mask(20).all()
    np.testing.assert_array_equal((Window(2) | Global(positions=(50,))).mask(20), Window(2).mask(20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window(0)", "window radius must be positive, got 0"),
        ("window(-3)", "window radius must be positive, got -3"),
        ("window(left=-1, right=2)", "window sides must not be negative"),
        ("window()", "window needs a radius"),
        ("window(3, left=1, right=1)", "window takes a radius or left and right"),
        ("window(3, dilation=0)", "window dilation must be positive, got 0"),
        ("global(0)", "global tokens must be positive, got 0"),
        ("global()", "global needs the number of first tokens or positions"),
        ("global(positions=[-1])", "global positions must be 0 or more"),
        ("blocks(0)", "blocks size must be positive, got 0"),
        ("blocks(8, neighbours=-1)", "blocks neighbours must not be negative, got -1"),
        ("windw(3)", "unknown pattern 'windw'; did you mean 'window'"),
        ("window(3", "cannot read pattern"),
        ("window(3) | 5", "cannot read '5' as a pattern"),
        ("window(radios=3)", r"window does not take \(radios=3\); it takes: radius, left, right, dilation"),
        ("global([1])", r"global does not take \(\(1,\)\); it takes: tokens, positions"),
        ("every(2, full)", r"every does not take \(2, full\); it takes: n, pattern, else_"),
        ("window(True)", "cannot read 'True' as a pattern"),
        ("strided(1)", "strided stride must be 2 or more, got 1; 1 is full"),
        ("strided(4, local=-1)", "strided local must not be negative, got -1"),
        ("random(0)", "random size must be positive, got 0"),
        ("random(8, blocks=0)", "random blocks must be positive, got 0"),
        ("longformer(0)", "window radius must be positive, got 0"),
        ("bigbird(64, random=0)", "random blocks must be positive, got 0"),
        ("topk(64.0)", "topk k must be a whole number, got 64.0"),
        ("window(3.5)", "window radius must be a whole number, got 3.5"),
        ("blocks(2.5)", "blocks size must be a whole number, got 2.5"),
        ("random(4, blocks=1.5)", "random blocks must be a whole number, got 1.5"),
        ("global(positions=[0, 1.5])", "global positions must be a whole number, got 1.5"),
        (f"window({10**20})", "window radius must be at most 1099511627776, got 100000000000000000000"),
        (f"global(positions=[{10**20}])", "global positions must be at most 1099511627776"),
        ("axial(1)", "axial width must be 2 or more, got 1"),
        ("axial(4, extra=-1)", "axial extra must not be negative, got -1"),
        ("window2d(0)", "window2d width must be positive, got 0"),
        ("window2d(4, radius=0)", "window2d radius must be positive, got 0"),
        ("window2d(4, extra=-1)", "window2d extra must not be negative, got -1"),
        ("prefix(0)", "prefix tokens must be positive, got 0; write causal for none"),
        ("kept(1.5)", "kept share must lie between 0 and 1, got 1.5"),
        ("topk(100)", "topk k must be a multiple of its block of 64, got 100"),
        ("topk(64, rank=0)", "topk block and rank must be positive, got 64 and 0"),
        ("lsh(7)", "lsh buckets must be even and positive, got 7"),
        ("lsh(8, rounds=0)", "lsh rounds and width must be positive, got 0 and 64"),
        ("nystrom(0)", "nystrom landmarks and iterations must be positive, got 0 and 6"),
        ("heads({2: full})", r"heads needs rising limits that end with inf, got \[2.0\]"),
        ("heads({inf: heads({inf: full})})", "heads must not stand inside heads"),
        ("every(0, full, else_=causal)", "every needs a positive number of layers, got 0"),
        ("by_length({512: full})", "by_length needs rising limits that end with inf"),
        ("by_length({512: by_length({inf: full}), inf: full})", "by_length must not stand inside by_length"),
    ],
)
def test_bad_patterns_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(PatternError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_patterns_combine_with_patterns_only() -> None:
    with pytest.raises(PatternError, match="a pattern combines with patterns, got 'full'"):
        Window(3) | "full"  # type: ignore[operator]


def test_every_pattern_is_registered_by_its_own_file() -> None:
    compositions = {"by_length", "every", "heads"}
    static = {
        "axial",
        "blocks",
        "causal",
        "full",
        "global",
        "kept",
        "prefix",
        "random",
        "strided",
        "window",
        "window2d",
    }
    assert set(REGISTRY) == compositions | static | {"bigbird", "longformer"} | {"topk", "lsh", "nystrom"}


def test_pictures(tmp_path: object) -> None:
    from pathlib import Path

    drawn = terminal(Window(2), length=8)
    assert len(drawn.splitlines()) == 4
    assert drawn.splitlines()[0].startswith("███")
    file = png(Window(2) | Global(1), Path(str(tmp_path)) / "p.png", length=32, size=64)
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_random_blocks_are_the_same_forever_and_for_everybody() -> None:
    pattern = Random(4, blocks=2, seed=3)
    mask = pattern.mask(64)[::4, ::4]
    picks = {index: np.flatnonzero(row).tolist() for index, row in enumerate(mask)}
    assert (picks[0], picks[1], picks[15]) == ([3, 11], [1, 15], [2, 3])  # written into bundles: never to change
    assert all(1 <= len(found) <= 2 for found in picks.values())
    places = torch.arange(64)
    as_torch = pattern.allows(places[:, None], places[None, :], 64)
    np.testing.assert_array_equal(as_torch.numpy(), pattern.mask(64))
    assert (Random(4, blocks=2, seed=4).mask(64) != pattern.mask(64)).any()


def test_another_seed_is_another_draw() -> None:
    seeds = (0, 1, 2**31, 2**31 + 1, 2**62, -1, -2)
    found = {Kept(0.5, seed=seed).mask(64).tobytes() for seed in seeds}
    assert len(found) == len(seeds)
    assert len({Random(4, seed=seed).mask(64).tobytes() for seed in seeds}) == len(seeds)


def test_a_hash_spreads_evenly() -> None:
    values = hashed(5, np.arange(400)[:, None], np.arange(400)[None, :])
    assert values.min() >= 0
    assert values.max() < 2**32
    counts = np.bincount((values >> 28).ravel(), minlength=16) / values.size
    assert abs(counts - 1 / 16).max() < 0.003
    assert np.array_equal(values, hashed(5, torch.arange(400)[:, None], torch.arange(400)[None, :]).numpy())


def test_kept_keeps_its_share_and_every_token_itself() -> None:
    mask = Kept(0.3, seed=1).mask(300)
    assert mask.diagonal().all()
    assert abs(mask.mean() - 0.3) < 0.01
    assert (Kept(0.3, seed=2).mask(300) != mask).any()


def test_heads_pick_by_number() -> None:
    pattern = parse("heads({2: full, inf: window(4)})")
    assert [str(pattern.resolve(0, head)) for head in range(4)] == ["full", "full", "window(4)", "window(4)"]
    assert pattern.resolve(3) == pattern
    assert pattern.cost(64, heads=4, head_dim=8).pairs == (64 * 64 + Window(4).mask(64).sum()) // 2
    with pytest.raises(PatternError, match=r"other pairs in each head; call resolve\(layer, head\) first"):
        pattern.allows(np.arange(3)[:, None], np.arange(3), 3)


def test_named_compositions_mean_what_the_papers_say() -> None:
    np.testing.assert_array_equal(Longformer(6, 2).mask(80), parse("window(6) | global(2)").mask(80))
    expected = parse("blocks(8) | random(8, blocks=3, seed=5) | global(8)")
    np.testing.assert_array_equal(BigBird(8, seed=5).mask(80), expected.mask(80))


def test_layouts_of_a_million_tokens_stay_linear() -> None:
    for text in ("causal & window(128) | global(1)", "bigbird(64)"):
        layout = parse(text).layout(1_000_000)
        assert layout.key_blocks.size < 80_000
        assert 0 < layout.computed_pairs < 2 * 10**9  # n² would be 10¹²


@pytest.mark.parametrize(
    ("text", "banded"),
    [
        ("window(128) | global(1)", True),
        ("causal", False),
        ("causal & window(128)", True),
        ("causal & (window(128) | global(1))", True),
        ("prefix(4) & blocks(8)", True),
        ("strided(8) & window(20)", True),
        ("strided(8) | window(20)", False),
        ("random(8) & causal", False),
        ("full & window(3)", True),
        ("kept(0.5) & (window(3) | global(1))", True),
    ],
)
def test_bounds_of_compositions_are_as_tight_as_they_can_be(text: str, banded: bool) -> None:
    bounds = parse(text).bounds()
    assert bounds is not None
    assert bounds.banded == banded


def test_causal_windows_reach_to_the_left_only() -> None:
    bounds = parse("causal & window(128)").bounds()
    assert bounds is not None
    assert (bounds.left, bounds.right) == (128, 0)
