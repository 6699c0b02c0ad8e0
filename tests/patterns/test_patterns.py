from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import louver
from louver.errors import PatternError
from louver.patterns import (
    REGISTRY,
    Blocks,
    Causal,
    Every,
    Full,
    Global,
    Pattern,
    Window,
    by_length,
    every,
    from_json,
    parse,
    to_json,
)
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
]

plain = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(Window, st.integers(1, 40), dilation=st.integers(1, 4)),
    st.builds(lambda a, b: Window(left=a, right=b), st.integers(1, 30), st.integers(0, 30)),
    st.builds(Global, st.integers(1, 5)),
    st.builds(lambda p: Global(positions=tuple(p)), st.lists(st.integers(0, 80), min_size=1, max_size=4)),
    st.builds(Blocks, st.integers(1, 20), st.integers(0, 3)),
)
composed: st.SearchStrategy[Pattern] = st.recursive(
    plain, lambda part: st.builds(lambda a, b, both: a & b if both else a | b, part, part, st.booleans()), max_leaves=4
)


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
        ("window(radios=3)", "window does not take these arguments"),
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
    assert set(REGISTRY) == {"blocks", "by_length", "causal", "every", "full", "global", "window"}


def test_pictures(tmp_path: object) -> None:
    from pathlib import Path

    drawn = terminal(Window(2), length=8)
    assert len(drawn.splitlines()) == 4
    assert drawn.splitlines()[0].startswith("███")
    file = png(Window(2) | Global(1), Path(str(tmp_path)) / "p.png", length=32, size=64)
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
