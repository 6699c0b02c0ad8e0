from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from louver.errors import OptionError
from louver.text.masking import IGNORED, Masking, Vocabulary

VOCABULARY = Vocabulary(mask_id=4, special_ids=frozenset(range(5)), size=1000)


def text(rng: np.random.Generator, tokens: int, longest: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and the words they belong to."""
    words = np.repeat(np.arange(tokens), rng.integers(1, longest + 1, tokens))[:tokens]
    return rng.integers(5, 1000, tokens), words


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.integers(0, 200),
    unit=st.sampled_from(["token", "word", "span"]),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 1000),
)
def test_what_is_asked_for_is_what_stood_there(tokens: int, unit: str, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids, words = text(rng, tokens)
    ids[rng.random(tokens) < 0.1] = 2  # specials inside the text
    given, asked = Masking(share, unit).hide(ids, words, VOCABULARY, rng)  # type: ignore[arg-type]
    hidden = asked != IGNORED
    np.testing.assert_array_equal(asked[hidden], ids[hidden])
    np.testing.assert_array_equal(given[~hidden], ids[~hidden])
    assert not hidden[ids == 2].any()
    assert not np.isin(given[hidden], [0, 1, 2, 3]).any()  # no special but the mask is ever put in
    whole = [w for w in np.unique(words) if not (ids[words == w] == 2).any()]
    free = int(np.isin(words, whole).sum())
    if free:
        budget = max(1, round(share * free))
        assert 1 <= hidden.sum() <= max(budget, 4)
        if unit == "token":
            assert hidden.sum() == budget
    if unit != "token":  # words are hidden whole or not at all
        for w in np.unique(words):
            assert len(set(hidden[words == w])) == 1


def test_a_word_longer_than_the_budget_is_left_alone_unless_there_is_no_other() -> None:
    masking = Masking(share=0.2, unit="word")
    ids, words = np.arange(10, 30), np.asarray([0] * 12 + list(range(1, 9)))
    for seed in range(20):
        _, asked = masking.hide(ids, words, VOCABULARY, np.random.default_rng(seed))
        assert (asked != IGNORED).sum() == 4
        assert (asked[:12] == IGNORED).all()
    _, asked = masking.hide(ids, np.zeros(20, np.int64), VOCABULARY, np.random.default_rng(0))
    assert (asked != IGNORED).all()


def test_eighty_ten_ten() -> None:
    rng = np.random.default_rng(0)
    ids, words = text(rng, 40_000)
    for unit in ("token", "word", "span"):
        given, asked = Masking(unit=unit).hide(ids, words, VOCABULARY, rng)
        hidden = asked != IGNORED
        assert hidden.mean() == pytest.approx(0.15, abs=0.002)
        assert (given[hidden] == 4).mean() == pytest.approx(0.8, abs=0.05 if unit == "span" else 0.02)
        assert (given[hidden] == ids[hidden]).mean() == pytest.approx(0.1, abs=0.05 if unit == "span" else 0.02)
    given, asked = Masking(masked=1.0, replaced=0.0).hide(ids, words, VOCABULARY, rng)
    assert (given[asked != IGNORED] == 4).all()


def test_spans_are_as_long_as_the_paper_says_and_share_one_throw() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 1000, 60_000)
    given, asked = Masking(0.05, "span").hide(ids, np.arange(60_000), VOCABULARY, rng)
    edges = np.diff(np.concatenate([[False], asked != IGNORED, [False]]).astype(int))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    assert (stops - starts).mean() == pytest.approx(3.8 * 1.1, abs=0.5)  # neighbours touch now and then
    masked = [set(given[a:b] == 4) for a, b in zip(starts, stops, strict=True) if b - a <= 10]
    assert np.mean([len(one) == 1 for one in masked]) > 0.93


def test_the_same_draw_hides_the_same() -> None:
    ids, words = text(np.random.default_rng(1), 300)
    first, second, third = (
        Masking().hide(ids, words, VOCABULARY, np.random.default_rng([0, 5, epoch]))[0] for epoch in (0, 0, 1)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share of hidden tokens must lie between 0 and 1, got 0.0"),
        ({"unit": "letter"}, "unknown masking unit 'letter'"),
        ({"masked": 0.9, "replaced": 0.2}, r"shares of the hidden tokens, got 0\.9 and 0\.2"),
    ],
)
def test_bad_masking(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Masking(**options)  # type: ignore[arg-type]
