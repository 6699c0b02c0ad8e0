from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from louver.decode import FoundSpan, TokenLogits, bio, find_answer, find_spans, units


def offsets_of(*tokens: tuple[int, int]) -> np.ndarray:
    return np.asarray([(-1, -1), *tokens, (-1, -1)])


def sure(tags: list[int], outputs: int) -> np.ndarray:
    """Logits that are certain of a tag, with specials around."""
    return np.eye(outputs)[[0, *tags, 0]] * 20


def test_a_word_is_letters_without_a_gap() -> None:
    text = "Ann-Lee lives in 北京市, ok"
    tokens = [(0, 3), (3, 4), (4, 5), (5, 7), (8, 13), (14, 16), (17, 19), (19, 20), (20, 21), (22, 24)]
    assert units(text, np.asarray(tokens)).tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]


def test_tags_become_spans() -> None:
    text = "Jane Doe met Acme in 北京"
    tokens = [(0, 4), (5, 6), (6, 8), (9, 12), (13, 17), (18, 20), (21, 22), (22, 23)]
    labels = ["org", "per", "place"]
    assert bio(labels) == ["O", "B-org", "I-org", "B-per", "I-per", "B-place", "I-place"]
    # the second piece of "Doe" says something else; the word's first piece counts
    logits = sure([3, 4, 1, 0, 2, 0, 5, 6], 7)
    found = find_spans(TokenLogits((logits,), (offsets_of(*tokens),), text), labels)
    assert [span[:4] for span in found] == [
        (0, 8, "per", "Jane Doe"),
        (13, 17, "org", "Acme"),  # an I- that continues nothing begins a span
        (21, 23, "place", "北京"),
    ]
    assert all(span.score > 0.99 for span in found)


def test_a_new_type_ends_a_span_and_b_begins_another() -> None:
    tokens = [(0, 1), (2, 3), (4, 5), (6, 7)]
    found = find_spans(TokenLogits((sure([1, 1, 2, 4], 5),), (offsets_of(*tokens),), "a b c d"), ["x", "y"])
    assert [span[:3] for span in found] == [(0, 1, "x"), (2, 5, "x"), (6, 7, "y")]


def test_spaces_that_a_tokenizer_counts_to_a_word_are_no_part_of_a_span() -> None:
    found = find_spans(TokenLogits((sure([0, 1], 3),), (offsets_of((0, 2), (2, 6)),), "in Rome"[:6]), ["x"])
    assert [span[:4] for span in found] == [(3, 6, "x", "Rom")]


def test_windows_give_each_token_the_answer_with_most_around_it() -> None:
    places = [(i, i + 1) for i in range(10)]
    first, second = np.zeros((8, 3)), np.zeros((8, 3))
    first[1:7, 0] = np.arange(6)
    second[1:7, 0] = 100 + np.arange(4, 10)
    answers = TokenLogits((first, second), (offsets_of(*places[:6]), offsets_of(*places[4:])), "abcdefghij")
    logits, offsets = answers.merged()
    assert offsets.tolist() == [list(place) for place in places]
    # tokens 4 and 5 are in both: 4 has one behind it in the first window and none before it in the second
    assert logits[:, 0].tolist() == [0, 1, 2, 3, 4, 105, 106, 107, 108, 109]


def test_bytes_of_one_character_are_told_apart_in_windows() -> None:
    """The last byte's token speaks for the character, in both halves of a window and across windows."""
    text = "山川河海林"
    places = [(i, i + 1) for i in range(5) for _ in range(3)]
    logits = np.zeros((len(places) + 2, 3))
    logits[1:-1:3] = logits[2:-1:3] = [0, 9, 0]  # what nobody taught
    logits[3:-1:3] = [[9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0], [0, 9, 0]]
    wanted = [(1, 3), (4, 5)]
    whole = TokenLogits((logits,), (offsets_of(*places),), text)
    assert [span[:2] for span in find_spans(whole, ["x"])] == wanted
    cuts = [(0, 10), (5, 15)]  # both within a character
    windows = tuple(np.concatenate([logits[:1], logits[1 + a : 1 + b], logits[-1:]]) for a, b in cuts)
    parts = TokenLogits(windows, tuple(offsets_of(*places[a:b]) for a, b in cuts), text)
    assert [span[:2] for span in find_spans(parts, ["x"])] == wanted


def test_the_best_answer_and_none() -> None:
    logits = np.zeros((6, 2))
    logits[2, 0], logits[4, 1] = 5, 4
    offsets = offsets_of((0, 2), (3, 6), (7, 9), (10, 14))
    answer = find_answer(TokenLogits((logits,), (offsets,), "in the old town"))
    assert answer == FoundSpan(3, 14, "", "the old tow", 9.0)
    logits[0] = 6
    assert find_answer(TokenLogits((logits,), (offsets,), "in the old town")).score == -3


def test_an_answer_never_ends_before_it_starts() -> None:
    logits = np.zeros((4, 2))
    logits[2, 0], logits[1, 1] = 9, 9
    answer = find_answer(TokenLogits((logits,), (offsets_of((0, 1), (2, 3)),), "a b"))
    assert answer.start < answer.end
    assert answer.score == 9


def test_the_best_window_answers() -> None:
    low, high = np.zeros((3, 2)), np.zeros((3, 2))
    low[1], high[1] = 1, 2
    answer = find_answer(TokenLogits((low, high), (offsets_of((0, 1)), offsets_of((2, 3))), "a b"))
    assert (answer.text, answer.score) == ("b", 4)


@given(st.data())
def test_spans_never_overlap_and_stand_in_the_text(data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet="ab 中,", min_size=1, max_size=12))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2)))
    tokens = list(itertools.pairwise(cuts))
    tags = data.draw(st.lists(st.integers(0, 4), min_size=len(tokens), max_size=len(tokens)))
    found = find_spans(TokenLogits((sure(tags, 5),), (offsets_of(*tokens),), text), ["x", "y"])
    for before, span in itertools.pairwise(found):
        assert before.end <= span.start
    for span in found:
        assert text[span.start : span.end] == span.text == span.text.strip() != ""


def test_no_tokens_no_spans() -> None:
    empty = TokenLogits((np.zeros((2, 3)),), (offsets_of(),), "")
    assert find_spans(empty, ["x"]) == []
    assert find_answer(empty).score == pytest.approx(-np.inf)
