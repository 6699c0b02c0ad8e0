from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import colour_rows, write_jsonl

import louver
from louver.bundle import Bundle, write_card, writing
from louver.errors import BundleError, DataError, OptionError, StorageError, TextError
from louver.export import export
from louver.measure.baselines import Baseline
from louver.runtime import Branch, padding_share, schedule
from louver.runtime.files import predict_file
from louver.runtime.replay import replay
from louver.text import Tokenizer, read_rows

BRANCHES = [Branch(64), Branch(2048, 128)]


def mixed(count: int, longest: int = 300) -> list[str]:
    rng = random.Random(1)
    return [
        " ".join(rng.choices(["red", "rose", "sea", "sky", "frog", "moss", "fire", "ice"], k=rng.randint(1, longest)))
        for _ in range(count)
    ]


@given(st.lists(st.integers(1, 2048), max_size=60), st.booleans())
def test_schedule_runs_every_text_once_with_hardly_any_padding(lengths: list[int], alone: bool) -> None:
    groups = schedule(lengths, BRANCHES, max_tokens=1024, alone=alone)
    assert sorted(m for g in groups for m in g.members) == list(range(len(lengths)))
    for group in groups:
        limit, multiple = BRANCHES[group.branch].limit, BRANCHES[group.branch].multiple
        own = [lengths[m] for m in group.members]
        assert max(own) <= min(limit, group.width)
        assert group.width % multiple == 0
        assert group.width - max(own) < multiple
        assert len(own) == 1 or (not alone and group.width * len(own) <= 1024)
        assert multiple > 1 or 1 - sum(own) / (group.width * len(own)) <= 0.05
    if lengths:
        assert 0 <= padding_share(groups, lengths) < 1


@pytest.mark.parametrize("which", ["tuned", "exported", "int8"])
def test_alone_equals_batched(which: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(which)
    texts = mixed(24)
    with louver.Predictor(bundle) as predictor:
        together = predictor.logits(texts)
        shuffled = predictor.logits(texts[::-1])[::-1]
        alone = np.concatenate([predictor.logits([text]) for text in texts])
        for found in (shuffled, alone):
            assert np.abs(found - together).max() / (1 + np.abs(together).max()) <= 1e-4
        labels = [p.label for p in predictor.predict(texts)]
        assert labels == [predictor.predict([text])[0].label for text in texts]


def test_embeddings_alone_equal_batched(long_bundle: Bundle) -> None:
    texts = mixed(10)
    with louver.Predictor(long_bundle) as predictor:
        together = np.stack([np.asarray(p.embedding) for p in predictor.predict(texts)])
        alone = np.stack([np.asarray(predictor.predict([t])[0].embedding) for t in texts])
    assert (together * alone).sum(1).min() > 0.99999


def test_onnx_answers_as_torch(tuned: Bundle, exported: Bundle) -> None:
    texts = mixed(12)
    with louver.Predictor(tuned) as torch_, louver.Predictor(exported) as onnx:
        assert np.abs(torch_.logits(texts) - onnx.logits(texts)).max() < 1e-4


def test_items_fail_alone_and_order_is_kept(exported: Bundle) -> None:
    texts: list[str] = ["red rose fire", "", "sea\ud800", "word " * 5000, "frog moss", None]  # type: ignore[list-item]
    with louver.Predictor(exported, truncation="error") as predictor:
        found = predictor.predict(texts)
    errors = [None, "is empty", "lone surrogate", "reads 2048 tokens and the text has 5002", None, "must be a string"]
    for prediction, wanted in zip(found, errors, strict=True):
        assert (prediction.error is None) == (wanted is None)
        assert wanted is None or wanted in str(prediction.error)
        assert (prediction.label is None) == (wanted is not None)
    assert (found[0].tokens_read, found[0].tokens_cut) == (3, 0)
    with pytest.raises(TextError, match="is empty"), louver.Predictor(exported) as predictor:
        predictor.logits([""])


def test_tokens_read_and_cut(exported: Bundle) -> None:
    text = "word " * 5000
    for rule, read in (("head", 2046), ("tail", 2046), ("head_tail", 2046), ("middle", 2046), ("window", 5000)):
        with louver.Predictor(exported, truncation=rule) as predictor:
            (found,) = predictor.predict([text])
            assert (found.tokens_read, found.tokens_cut) == (read, 5000 - read)


def test_nothing_in_nothing_out(exported: Bundle) -> None:
    with louver.Predictor(exported) as predictor:
        assert predictor.predict([]) == []
        assert list(predictor.stream(iter(["red", "", "sea"]), chunk=2))[1].error
    with pytest.raises(OptionError, match="takes a list of texts, got one string"):
        predictor.predict("red")
    with pytest.raises(OptionError, match="threads must be positive, got 0"):
        louver.Predictor(exported, threads=0)
    with pytest.raises(OptionError, match="unknown truncation"):
        louver.Predictor(exported, truncation="cut")


def test_a_fake_engine_is_enough(exported: Bundle) -> None:
    class Fake:
        branches = (Branch(float("inf")),)
        workers = 2

        def run(self, branch: int, ids: np.ndarray, mask: np.ndarray, *, single: bool) -> np.ndarray:
            counts = mask.sum(1)
            return np.stack([counts, -counts, counts * 0], 1).astype(np.float32)

    with louver.Predictor(exported, engine=Fake()) as predictor:  # type: ignore[arg-type]
        found = predictor.logits(["red", "red rose", "red rose fire"])
    assert found[:, 0].tolist() == [3, 4, 5]


def test_a_text_of_invisible_characters_is_no_text(exported: Bundle) -> None:
    with louver.Predictor(exported) as predictor:
        for text in ("\u200b", "\x00", "\ufeff \u00ad"):
            (found,) = predictor.predict([text])
            assert found.label is None
            assert found.error is not None
            assert "invisible characters alone" in found.error


def test_a_text_that_the_tokenizer_drops_gets_an_error(exported: Bundle, tuned: Bundle) -> None:
    """A combining accent by itself: visible, but no token is left of it."""
    with louver.Predictor(exported) as predictor:
        found = predictor.predict(["moss", "\u0301"])
        assert [one.error is None for one in found] == [True, False]
        assert "no character that the tokenizer knows" in str(found[1].error)
        with pytest.raises(TextError, match="no character that the tokenizer knows"):
            predictor.logits(["moss", "\u0301"])
    with pytest.raises(TextError, match="no character that the tokenizer knows"):
        Baseline(tuned, "dense", max_length=64).logits(["moss", "\u0301"])


def test_windows_weigh_by_their_text_not_by_their_specials(tuned: Bundle) -> None:
    prompted = tuned.card.model_copy(update={"prompt": "answer the colour ", "max_length": 12})
    with louver.Predictor(tuned, truncation="window") as predictor:
        predictor.card = predictor.reading.card = prompted
        (one,) = predictor.reading.read(["sea " * 9])
        assert [len(piece) for piece in one.fitted.pieces] == [12, 7]
        assert one.fitted.counts == (7, 2)
        ((first, second),) = predictor._run([one])
        found = predictor.reading.output(one, [first, second])
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, (7 * first + 2 * second) / 9, rtol=1e-5)


MEMORY = """
import psutil, random, louver
rng, moments = random.Random(0), {moments}
with louver.Predictor({bundle!r}) as predictor:
    for batch in range(1, moments[-1] + 1):
        size, longest = rng.randint(1, 4), rng.choice({lengths})
        predictor.predict([" ".join(["sea"] * rng.randint(1, longest)) for _ in range(size)])
        if batch in moments:
            print(psutil.Process().memory_info().rss / 1e6)
"""


def memory_after(bundle: Path, *moments: int, lengths: tuple[int, ...] = (20, 100, 400, 1200)) -> list[float]:
    """Return the resident memory in MB of a fresh process after so many batches of random shapes."""
    code = MEMORY.format(moments=list(moments), bundle=str(bundle), lengths=lengths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def served_minilm(minilm_l3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model: a tiny one's tensors are too small to show how an arena grows."""
    directory = tmp_path_factory.mktemp("minilm")
    long = louver.extend(minilm_l3, into=directory / "long", max_length=4096)
    return export(long, into=directory / "onnx").path


def test_memory_does_not_grow_with_shapes(served_minilm: Path) -> None:
    early, late = memory_after(served_minilm, 100, 300)
    assert late <= early * 1.1


@pytest.mark.soak
def test_memory_after_2000_batches(served_minilm: Path) -> None:
    early, late = memory_after(served_minilm, 100, 2000, lengths=(20, 100, 400, 1200, 4000))
    print(f"{early:.0f} MB after 100 batches, {late:.0f} after 2,000")  # noqa: T201 - shown by make soak
    assert late <= early * 1.1


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_files(exported: Bundle, tmp_path: Path, suffix: str) -> None:
    rows = [*colour_rows(5), {"text": "", "label": "red"}]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    target = tmp_path / f"out.{suffix}"
    with louver.Predictor(exported) as predictor:
        counts = predict_file(predictor, source, target, chunk=2)
        assert (counts.rows, counts.failed) == (6, 1)
        with pytest.raises(DataError, match="is the file that is read"):
            predict_file(predictor, source, source)
        with pytest.raises(DataError, match="no column 'body'"):
            predict_file(predictor, source, tmp_path / "x.jsonl", column="body")
    found = list(read_rows(target))
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    assert [row["label"] for row in found] == [row["label"] for row in rows]  # the user's own
    assert all(row["predicted_label"] in exported.card.labels for row in found[:5])
    assert not found[5].get("predicted_label")
    assert "is empty" in found[5]["error"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_broken_line_fails_alone(exported: Bundle, tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": \n{"text": "red rose", "id": 7}\n{"body": "x"}\n{"text": "\xff"}\n{"text": 5}\n')
    target = tmp_path / f"out.{suffix}"
    with louver.Predictor(exported) as predictor:
        counts = predict_file(predictor, source, target, chunk=2)
    assert (counts.rows, counts.failed) == (5, 4)
    found = list(read_rows(target))
    assert [bool(row["error"]) for row in found] == [True, False, True, True, True]
    messages = [
        "line 1: no JSON",
        "",
        "no column 'text' in a row; it has: body",
        "line 4: no UTF-8",
        "must be a string",
    ]
    assert all(part in (row["error"] or "") for part, row in zip(messages, found, strict=True))
    assert int(found[1]["id"]) == 7


def test_nothing_of_the_users_is_written_over(exported: Bundle, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "red rose"},
        {"text": "sea", "label": "mine"},
        {"text": "moss", "label": "mine", "predicted_label": "earlier"},
    ]
    source, target = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with louver.Predictor(exported) as predictor:
        predict_file(predictor, source, target)
    found = list(read_rows(target))
    assert all(row.items() <= answered.items() for row, answered in zip(rows, found, strict=True))
    assert all(row["predicted_predicted_label"] in exported.card.labels for row in found)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_an_answer_stands_in_one_place_whatever_later_rows_hold(
    exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """A column that turns up after the rows that were looked at first must not take an answer's place."""
    monkeypatch.setattr("louver.runtime.files._PEEKED", 2)
    rows = [{"text": "red rose"}, {"text": "sea"}, {"text": "moss", "label": "mine"}]
    source, target = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / f"out.{suffix}"
    with louver.Predictor(exported) as predictor:
        counts = predict_file(predictor, source, target)
    found = list(read_rows(target))
    assert all(row["label"] in exported.card.labels for row in found)
    if suffix == "jsonl":
        assert found[2]["source_label"] == "mine"
    else:
        assert counts.left_out == ("source_label",)


def test_files_of_broken_lines_and_of_none(exported: Bundle, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("broken\n" * 5 + '{"text": "red rose"}\n')
    (tmp_path / "bad.jsonl").write_text("broken\n" * 5)
    (tmp_path / "empty.jsonl").write_text("")
    with louver.Predictor(exported) as predictor:
        counts = predict_file(predictor, tmp_path / "in.jsonl", tmp_path / "out.csv", chunk=1)
        assert (counts.rows, counts.failed) == (6, 5)
        assert list(read_rows(tmp_path / "out.csv"))[5]["text"] == "red rose"
        counts = predict_file(predictor, tmp_path / "bad.jsonl", tmp_path / "bad_out.jsonl")
        assert (counts.rows, counts.failed) == (5, 5)
        for suffix in ("parquet", "csv", "jsonl"):
            target = tmp_path / f"none.{suffix}"
            target.write_text("old")
            (tmp_path / f"none.{suffix}.partial").write_text("stale")
            assert predict_file(predictor, tmp_path / "empty.jsonl", target).rows == 0
            assert list(read_rows(target)) == []
        with pytest.raises(OptionError, match="chunk must be positive, got 0"):
            predict_file(predictor, tmp_path / "in.jsonl", tmp_path / "x.csv", chunk=0)
        with pytest.raises(OptionError, match="chunk must be positive, got 0"):
            next(predictor.stream(["a"], chunk=0))
        with pytest.raises(OptionError, match="logits takes at least one text"):
            predictor.logits([])
        with pytest.raises(TextError, match="text 2 of 2: the text is empty"):
            predictor.logits(["a", ""])
        with pytest.raises(StorageError, match=r"could not write .*no/x.jsonl: No such file or directory; make"):
            predict_file(predictor, tmp_path / "in.jsonl", tmp_path / "no" / "x.jsonl")


def test_threads_of_torch_are_set_only_when_asked_for(tuned: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    louver.Predictor(tuned).close()
    louver.Predictor(tuned, threads=1).close()
    assert asked == [1]


def test_bundles_that_cannot_answer(exported: Bundle, tmp_path: Path) -> None:
    with writing(tmp_path / "b") as draft:
        shutil.copy(exported.path / "tokenizer.json", draft)
        write_card(draft, exported.card.model_copy(update={"onnx": {}, "golden": None}))
    with pytest.raises(BundleError, match="holds neither ONNX graphs nor safetensors"):
        louver.Predictor(tmp_path / "b")
    with pytest.raises(BundleError, match="carries no golden texts"):
        replay(tmp_path / "b")


def test_an_interrupted_prediction_keeps_the_old_target(
    exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", colour_rows(5)), tmp_path / "out.jsonl"
    target.write_text("old\n")
    with louver.Predictor(exported) as predictor:
        real, calls = predictor.predict, []

        def twice(texts: list[str]) -> list[louver.Prediction]:
            calls.append(1)
            if len(calls) > 2:
                raise KeyboardInterrupt
            return real(texts)

        monkeypatch.setattr(predictor, "predict", twice)
        with pytest.raises(KeyboardInterrupt):
            predict_file(predictor, source, target, chunk=2)
    assert target.read_text() == "old\n"
    assert len((tmp_path / "out.jsonl.partial").read_text().splitlines()) == 4


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("change", ["none", "truncation", "source", "partial"])
def test_an_interrupted_prediction_goes_on(
    change: str, suffix: str, exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the same bytes; rows that were answered are not asked again, unless something is another."""
    rows = [*colour_rows(9), {"text": ""}, *colour_rows(4, seed=1)]
    source, target = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / f"out{suffix}"
    with louver.Predictor(exported, truncation="head") as predictor:
        whole = predict_file(predictor, source, tmp_path / f"whole{suffix}", chunk=3)
        real, asked = predictor.predict, list[int]()

        def thrice(texts: list[str]) -> list[louver.Prediction]:
            asked.append(len(texts))
            if len(asked) == 4:
                raise KeyboardInterrupt
            return real(texts)

        with monkeypatch.context() as patch:
            patch.setattr(predictor, "predict", thrice)
            with pytest.raises(KeyboardInterrupt):
                predict_file(predictor, source, target, chunk=3)
        draft = tmp_path / f"out{suffix}.partial"
        with draft.open("a") as stream:
            stream.write('{"half": ')  # a row that was under way
    if change == "partial":
        draft.write_text("")
    if change == "source":
        write_jsonl(source, [{"text": "blue"}, *rows[1:]])
    with louver.Predictor(exported, truncation="tail" if change == "truncation" else "head") as predictor:
        counts = predict_file(predictor, source, target, chunk=3)
    assert counts.resumed == (9 if change == "none" else 0)
    assert (counts.rows, counts.failed) == (whole.rows, whole.failed) == (14, 1)
    if change == "none":
        assert target.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert not list(tmp_path.glob(".*progress"))
    assert not list(tmp_path.glob("*.partial"))


def test_replay(exported: Bundle, tuned: Bundle, int8: Bundle) -> None:
    for bundle in (exported, tuned, int8):
        found = replay(bundle.path)
        assert found["max_difference"] <= found["tolerance"]
        assert bundle.card.golden is not None
        lengths = [len(ids) for ids in Tokenizer.open(bundle.path).encode(list(map(str, bundle.card.golden.texts)))]
        assert max(lengths) > bundle.card.original_length > min(lengths)  # both branches of the pattern


def test_replay_sees_another_answer(tuned: Bundle, tmp_path: Path) -> None:
    from louver.bundle import Golden, write_card, writing

    assert tuned.card.golden is not None
    wrong = Golden(texts=tuned.card.golden.texts, outputs=[[9.0] * 3] * len(tuned.card.golden.texts))
    with writing(tmp_path / "b") as draft:
        for file in tuned.path.glob("*"):
            if file.name not in ("louver.json", "manifest.json"):
                (draft / file.name).write_bytes(file.read_bytes())
        write_card(draft, tuned.card.model_copy(update={"golden": wrong}))
    with pytest.raises(BundleError, match=r"answers its golden texts .* away"):
        replay(tmp_path / "b")


WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "sklearn", "datasets", "accelerate", "onnx"):
    sys.modules[name] = None
from louver.cli import app
app({arguments!r}, standalone_mode=True)
"""


def run_without_torch(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    code = WITHOUT_TORCH.format(arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_predict_check_and_info_work_without_torch(exported: Bundle, tuned: Bundle, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [*colour_rows(3), {"text": "", "label": "red"}])
    done = run_without_torch(["predict", str(exported.path), str(source), str(tmp_path / "out.jsonl")])
    assert done.returncode == 3, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["error"] is None for row in rows] == [True, True, True, False]
    assert run_without_torch(["check", str(exported.path)]).returncode == 0
    assert run_without_torch(["info", str(exported.path)]).returncode == 0
    refused = run_without_torch(["predict", str(tuned.path), str(source)])
    assert refused.returncode == 2
    assert "not installed; run: pip install 'louver[train]'" in refused.stderr
