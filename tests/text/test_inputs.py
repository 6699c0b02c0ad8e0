"""Pairs and offsets: ids and segments against transformers' own tokenizers, and every token covered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from louver.errors import OptionError, TextError
from louver.text import Tokenizer, Truncation, check_pair, inputs
from louver.text.hygiene import clean

A, B = "A louver lets light through.", "北京 is far, 'tis true; naïve façade."


@pytest.mark.parametrize("name", ["minilm_l3", "me5_small"])
def test_pairs_are_as_transformers_makes_them(name: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(name)
    (found,) = inputs(Tokenizer.open(directory), [(A, B)], max_length=512, truncation=Truncation.ERROR)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)(A, B)
    assert found.pieces[0].tolist() == theirs["input_ids"]
    assert (found.read, found.cut) == (len(theirs["input_ids"]) - (3 if name == "minilm_l3" else 4), 0)


def test_the_separator_tells_segments_apart(minilm_l3: Path, me5_small: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(minilm_l3)(A, B)
    tokenizer = Tokenizer.open(minilm_l3)
    ids = np.asarray(theirs["input_ids"])
    ends = ids == tokenizer.separator
    assert ((ends.cumsum() - ends) > 0).astype(int).tolist() == theirs["token_type_ids"]
    assert Tokenizer.open(me5_small).separator is None  # its tokenizer gives every token segment 0


@pytest.mark.parametrize("name", ["minilm_l3", "me5_small"])
def test_offsets_point_into_the_last_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = Tokenizer.open(request.getfixturevalue(name))
    prompt = "query: "
    for text in (B, (A, B)):
        (found,) = inputs(tokenizer, [text], max_length=512, truncation=Truncation.ERROR, prompt=prompt, offsets=True)
        (places,) = found.offsets
        assert len(places) == len(found.pieces[0])
        covered = {i for a, b in places if a >= 0 for i in range(a, b)}
        assert covered >= {i for i, c in enumerate(B) if not c.isspace()}
        words = [B[a:b].strip() for a, b in places if a >= 0]
        assert "北京" in words or {"北", "京"} <= set(words)


@settings(max_examples=60, deadline=None)
@given(first=st.integers(1, 60), second=st.integers(1, 120), room=st.integers(8, 64), rule=st.sampled_from(Truncation))
def test_pairs_fit_and_say_what_was_cut(minilm_l3: Path, first: int, second: int, room: int, rule: Truncation) -> None:
    tokenizer = _tokenizer(minilm_l3)
    a, b = "red " * first, " ".join(["sea", "ice"][i % 2] for i in range(second))
    (found,) = inputs(tokenizer, [(a, b)], max_length=room + 3, truncation=rule, offsets=True)
    if rule is Truncation.ERROR and first + second > room:
        assert found.error is not None
        assert f"reads {room + 3} tokens and the text has {first + second + 3}" in found.error
        return
    assert all(len(piece) <= room + 3 for piece in found.pieces)
    assert found.read + found.cut == first + second
    if first + second <= room:
        assert found.cut == 0
    elif rule is not Truncation.WINDOW:
        assert len(found.pieces[0]) == room + 3  # no room is left unused
    else:
        # every token of the second text is in a window, and only the first text may be cut, to no less than half
        assert {a for places in found.offsets for a, _ in places if a >= 0} == {4 * i for i in range(second)}
        assert found.cut == max(0, first - room + room // 2) if first > room // 2 and second >= room // 2 else True


def test_windows_share_tokens_only_where_tokens_are_answered(minilm_l3: Path) -> None:
    tokenizer = _tokenizer(minilm_l3)
    text = "red " * 100
    apart, shared = (
        inputs(tokenizer, [text], max_length=22, truncation=Truncation.WINDOW, offsets=asked)[0]
        for asked in (False, True)
    )
    assert sum(apart.counts) == apart.read == shared.read == 100
    assert sum(shared.counts) > 100


def test_what_is_no_pair() -> None:
    assert check_pair(["a", "b"]) == ("a", "b")
    with pytest.raises(TextError, match=r"this model reads pairs of texts, got str; give \(first, second\)"):
        check_pair("a")
    with pytest.raises(TextError, match="got 3 texts"):
        check_pair(["a", "b", "c"])
    with pytest.raises(TextError, match="the text is empty"):
        check_pair(("a", " "))


def test_a_prompt_without_room(minilm_l3: Path) -> None:
    with pytest.raises(OptionError, match="3 specials and 1 tokens of prompt leave no room for text in max_length=5"):
        inputs(Tokenizer.open(minilm_l3), [("a", "b")], max_length=5, truncation=Truncation.HEAD, prompt="a ")


_OPEN: dict[Path, Tokenizer] = {}


def _tokenizer(directory: Path) -> Tokenizer:
    return _OPEN.setdefault(directory, Tokenizer.open(directory))


def test_chinese_names_align_by_offset(me5_small: Path, zh_ner: Path) -> None:
    """Raw text, as it is written: every annotated name begins and ends where a token does, or nearly every one."""
    rows = [json.loads(line) for line in zh_ner.read_text("utf8").splitlines()[:300]]
    tokenizer = Tokenizer.open(me5_small)
    texts = [row["text"] for row in rows]
    cut, names = 0, 0
    for row, found in zip(
        rows, inputs(tokenizer, texts, max_length=512, truncation=Truncation.HEAD, offsets=True), strict=True
    ):
        edges = found.offsets[0]
        for start, end, _ in row["spans"]:
            names += 1
            cut += start not in edges[:, 0] or end not in edges[:, 1]
    assert names > 300
    assert cut / names < 0.2


@pytest.mark.parametrize("name", ["minilm_l3", "me5_small"])
def test_light_cleaning_keeps_every_place(name: str, request: pytest.FixtureRequest) -> None:
    """Full-width forms are read as plain ones, control characters as spaces; offsets point into the text as it was."""
    plain = Tokenizer.open(request.getfixturevalue(name))
    light = replace(plain, cleaning="light")
    odd, usual = "Ｇｏｏｇｌｅ　１９９８年\x07成立！", "Google 1998年 成立!"
    assert clean(odd, "light") == usual
    assert clean(odd, "none") == odd
    (found,), (expected,) = (
        inputs(one, [text], max_length=64, truncation=Truncation.ERROR, offsets=True)
        for one, text in ((light, odd), (plain, usual))
    )
    assert found.pieces[0].tolist() == expected.pieces[0].tolist()
    assert found.offsets[0].tolist() == expected.offsets[0].tolist()
    assert light.encode_words([odd])[0][0].tolist() == light.encode([odd])[0].tolist()
    assert light.encode_after("query: ", [odd])[0][1].tolist() == plain.encode_after("query: ", [usual])[0][1].tolist()


@given(st.text())
def test_cleaning_never_moves_a_character(text: str) -> None:
    found = clean(text, "light")
    assert len(found) == len(text)
    assert clean(found, "light") == found
