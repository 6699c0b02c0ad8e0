from __future__ import annotations

import contextlib
import errno
import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from louver.errors import DataError, ModelError, OptionError, StorageError, TextError
from louver.text import RowWriter, Tokenizer, Truncation, check, fit, inputs, read_rows, scan_rows


def test_ids_equal_transformers(minilm_l3: Path, composite: Path) -> None:
    ours = Tokenizer.open(minilm_l3)
    theirs = transformers.AutoTokenizer.from_pretrained(minilm_l3)
    texts = [json.loads(line)["text"] for line in composite.read_text("utf8").splitlines()[:20]]
    texts += ["naïve café ½ 东京 \t\n emoji 🙂", "a"]
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        assert ours.wrap(ids).tolist() == theirs(text, truncation=False)["input_ids"]


def test_special_tokens_in_text_are_text(minilm_l3: Path) -> None:
    tokenizer = Tokenizer.open(minilm_l3)
    (ids,) = tokenizer.encode(["a [SEP] b [MASK]"])
    assert not set(ids.tolist()) & {101, 102, 103}
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id) == ((101,), (102,), 0)


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer.json"):
        Tokenizer.open(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "the text is empty"), (" \n", "the text is empty"), ("a\ud800", r"lone surrogate U\+D800 at character 1")],
)
def test_unreadable_texts(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        check(text)
    with pytest.raises(TextError, match="a text must be a string, got NoneType"):
        check(None)


@given(st.integers(1, 60), st.integers(2, 20), st.integers(0, 1))
def test_truncations(count: int, room: int, overlap: int) -> None:
    ids = np.arange(count)
    for rule in Truncation:
        if rule is Truncation.ERROR and count > room:
            with pytest.raises(TextError, match=f"reads {room + 2} tokens and the text has {count + 2}"):
                fit(ids, room, rule, max_length=room + 2)
            continue
        found = fit(ids, room, rule, max_length=room + 2, overlap=overlap)
        assert all(len(piece) <= room for piece in found.pieces)
        assert found.read + found.cut == count
        joined = np.unique(np.concatenate(found.pieces))
        assert len(joined) == found.read
        if rule is Truncation.WINDOW:
            assert joined.tolist() == list(range(count))


def test_what_each_truncation_keeps() -> None:
    kept = {rule: fit(np.arange(10), 4, rule, max_length=6).pieces[0].tolist() for rule in list(Truncation)[1:5]}
    assert kept == {
        Truncation.HEAD: [0, 1, 2, 3],
        Truncation.TAIL: [6, 7, 8, 9],
        Truncation.HEAD_TAIL: [0, 1, 8, 9],
        Truncation.MIDDLE: [3, 4, 5, 6],
    }
    with pytest.raises(OptionError, match="unknown truncation 'heads'; did you mean 'head'"):
        Truncation.named("heads")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_rows_round_trip(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": 'quoted "comma", ü', "n": "1"}, {"text": "two\nlines", "n": "2"}]
    with RowWriter(tmp_path / f"rows{suffix}") as writer:
        for row in rows:
            writer.write(row)
    assert list(read_rows(tmp_path / f"rows{suffix}")) == rows


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": \n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2: no JSON"):
        list(read_rows(tmp_path / "a.jsonl"))
    (tmp_path / "b.jsonl").write_text("[1]\n")
    with pytest.raises(DataError, match=r"line 1: list, not an object"):
        list(read_rows(tmp_path / "b.jsonl"))
    with pytest.raises(DataError, match="is not a file"):
        list(read_rows(tmp_path / "missing.csv"))
    (tmp_path / "c.xls").write_text("")
    with pytest.raises(DataError, match=r"unknown file format '.xls'"):
        list(read_rows(tmp_path / "c.xls"))
    with pytest.raises(DataError, match=r"unknown file format '.xls'"):
        RowWriter(tmp_path / "c.xls")


def test_spreadsheets_marks_and_broken_lines(tmp_path: Path) -> None:
    (tmp_path / "bom.csv").write_text("text,label\na,b\n", "utf-8-sig")
    assert list(read_rows(tmp_path / "bom.csv")) == [{"text": "a", "label": "b"}]
    (tmp_path / "latin.csv").write_bytes("text\ncaf\u00e9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"latin.csv, line 2: no UTF-8; save the file as UTF-8"):
        list(read_rows(tmp_path / "latin.csv"))
    (tmp_path / "ragged.csv").write_text("text\na,b\n")
    with pytest.raises(DataError, match="line 2: more cells than columns"):
        list(read_rows(tmp_path / "ragged.csv"))


def test_a_failed_row_with_a_surrogate_can_be_written(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv", ".parquet"):
        with RowWriter(tmp_path / f"rows{suffix}") as writer:
            writer.write({"text": "bad \ud800", "error": "lone surrogate"})
        assert next(read_rows(tmp_path / f"rows{suffix}"))["error"] == "lone surrogate"


def test_a_broken_line_comes_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\n{"n": \n\n\xff\nnull\n{"n": 2}\n')
    found = list(scan_rows(tmp_path / "a.jsonl"))
    assert [row if isinstance(row, dict) else str(row).split(", ", 1)[1][:16] for row in found] == [
        {"n": 1},
        "line 2: no JSON ",
        "line 4: no UTF-8",
        "line 5: NoneType",
        {"n": 2},
    ]
    (tmp_path / "a.csv").write_bytes(b"text,n\na,1\nb,2,3\nc\xff,4\nd,5\n")
    found = list(scan_rows(tmp_path / "a.csv"))
    assert [isinstance(row, DataError) for row in found] == [False, True, True, False]
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(scan_rows(tmp_path / "a.parquet"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_an_interrupted_file_stays_beside_the_old_one(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"rows{suffix}"
    with RowWriter(target) as writer:
        writer.write({"n": 1})
    with contextlib.suppress(KeyboardInterrupt), RowWriter(target) as writer:
        writer.write({"n": 2})
        raise KeyboardInterrupt
    assert [str(row["n"]) for row in read_rows(target)] == ["1"]
    partial = target.with_name(f"{target.name}.partial").rename(tmp_path / f"part{suffix}")
    assert [str(row["n"]) for row in read_rows(partial)] == ["2"]


def test_what_files_cannot_hold(tmp_path: Path) -> None:
    with RowWriter(tmp_path / "a.csv") as writer:
        writer.write({"n": 1})
        writer.write({"n": 2, "more": 3})
    assert writer.left_out == {"more"}
    with RowWriter(tmp_path / "a.jsonl") as writer:
        writer.write({"when": date(2017, 3, 9)})
    assert list(read_rows(tmp_path / "a.jsonl")) == [{"when": "2017-03-09"}]
    with RowWriter(tmp_path / "a.parquet") as writer:
        for value in (1, "one", None):
            writer.write({"n": value})
    assert [row["n"] for row in read_rows(tmp_path / "a.parquet")] == ["1", "one", None]
    writer = RowWriter(tmp_path / "b.parquet")
    for value in (*range(1024), "late"):
        writer.write({"n": value})
    with pytest.raises(DataError, match="a column changes its type"):
        writer.__exit__(None, None, None)


def test_a_full_disk_says_where_the_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RowWriter(tmp_path / "a.jsonl") as writer:
        writer.write({"n": 1})
        monkeypatch.setattr(json, "dumps", _full)
        with pytest.raises(StorageError, match=r"No space left on device; the rows so far are in .*a.jsonl.partial"):
            writer.write({"n": 2})
    monkeypatch.undo()
    assert list(read_rows(tmp_path / "a.jsonl")) == [{"n": 1}]


def _full(*_: object, **__: object) -> str:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_prompt_is_never_cut_and_stands_in_every_window(minilm_l3: Path) -> None:
    tokenizer = Tokenizer.open(minilm_l3)
    prompt, text = "query: ", "one two three four five six seven eight nine ten"
    whole = tokenizer.wrap(tokenizer.encode([prompt + text])[0])
    (found,) = inputs(tokenizer, [text], max_length=64, truncation=Truncation.ERROR, prompt=prompt)
    assert found.pieces[0].tolist() == whole.tolist()
    assert (found.read, found.cut) == (10, 0)
    before = tokenizer.encode(["query:"])[0].tolist()
    for rule in (Truncation.HEAD, Truncation.TAIL, Truncation.MIDDLE, Truncation.HEAD_TAIL, Truncation.WINDOW):
        (found,) = inputs(tokenizer, [text], max_length=8, truncation=rule, prompt=prompt)
        assert all(piece[1 : 1 + len(before)].tolist() == before for piece in found.pieces)
        assert all(len(piece) <= 8 for piece in found.pieces)
        assert found.read + found.cut == 10
    (found,) = inputs(tokenizer, [text], max_length=8, truncation=Truncation.ERROR, prompt=prompt)
    assert (found.pieces, found.cut) == ([], 10)
    assert "run 'louver extend'" in str(found.error)
    with pytest.raises(OptionError, match="2 specials and 7 tokens of prompt leave no room for text in max_length=8"):
        inputs(tokenizer, [text], max_length=8, truncation=Truncation.HEAD, prompt="a b c d e f g ")
