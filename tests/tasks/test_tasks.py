from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from tests.conftest import colour_rows, write_jsonl

from louver.errors import DataError, OptionError
from louver.tasks import Classification, Columns, Example, make_splits, metric, read_examples


def examples(count: int) -> list[tuple[Example, str]]:
    return [(Example(f"{row['text']} {i}", row["label"], f"g{i % 10}"), "") for i, row in enumerate(colour_rows(count))]


def test_three_disjoint_parts_by_seed() -> None:
    one, two, other = (make_splits(examples(100), seed=seed) for seed in (0, 0, 1))
    assert one == two
    assert one.test != other.test
    texts = [e.text for part in (one.train, one.validation, one.test) for e in part]
    assert len(texts) == len(set(texts)) == 100
    assert make_splits(examples(100), limits={"test": 3}).test == one.test[:3]


def test_limits_come_before_the_checks() -> None:
    rows = [(Example(f"t{i}", "ab"[i % 2]), "train") for i in range(40)] + [(Example("x", "c"), "train")] * 2
    rows += [(Example(f"u{i}", "abc"[i % 3]), "test") for i in range(9)]
    with pytest.raises(DataError, match=r"never occurs in training|one training example"):
        make_splits(rows, limits={"train": 5})
    assert len(make_splits(rows, limits={"train": 30}, drop=["unseen", "rare", "duplicates"]).test) >= 6


def test_groups_stay_together_and_dates_rise() -> None:
    data = make_splits(examples(100), by="group")
    groups = [{e.group for e in part} for part in (data.train, data.validation, data.test)]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    dated = [(Example(e.text, e.label, f"2020-{1 + i % 12:02d}-01"), "") for i, (e, _) in enumerate(examples(100))]
    data = make_splits(dated, by="date")
    assert max(e.group for e in data.train) <= min(e.group for e in data.validation)
    assert max(e.group for e in data.validation) <= min(e.group for e in data.test)
    with pytest.raises(DataError, match="date '2017/3/9' is not ISO 8601"):
        make_splits([(Example(e.text, e.label, "2017/3/9"), "") for e, _ in examples(9)], by="date")
    with pytest.raises(DataError, match="no row is older than 2017-03-09; dates that are all alike split nothing"):
        make_splits([(Example(e.text, e.label, "2017-03-09"), "") for e, _ in examples(9)], by="date")
    with pytest.raises(DataError, match="seed must not be negative, got -1"):
        make_splits(examples(9), seed=-1)


def test_a_group_in_two_named_parts_is_refused() -> None:
    found = [
        (Example(e.text, e.label, f"g{i % 5}"), "test" if i < 10 else "") for i, (e, _) in enumerate(examples(100))
    ]
    with pytest.raises(
        DataError, match=r"stands in (train|validation) and (validation|test); name the part of all its"
    ):
        make_splits(found, by="group")


def test_rows_of_one_moment_stay_together_whatever_their_time_zone() -> None:
    def dated(stamp: str, index: int) -> Example:
        example = examples(100)[index][0]
        return Example(example.text, example.label, stamp)

    early, late = "2020-03-01T12:00:00", "2020-03-02T01:00:00+14:00"  # the second is 2020-03-01T11:00 in UTC
    rows = [(dated(late if i % 2 else early, i), "") for i in range(80)] + [
        (dated(f"2020-04-{1 + i // 5:02d}", 80 + i), "") for i in range(20)
    ]
    data = make_splits(rows, by="date", shares=(0.3, 0.13))
    assert {e.group for e in data.train} == {late}
    parts = [{e.group for e in part} for part in (data.train, data.validation, data.test)]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]


def test_named_parts_are_kept(tmp_path: Path) -> None:
    rows = [{**row, "split": "test" if i % 4 == 0 else "train"} for i, row in enumerate(colour_rows(80))]
    found = read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns(split="split"))
    data = make_splits(found)
    assert {e.text for e in data.test} == {r["text"] for r in rows if r["split"] == "test"}
    assert data.validation


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "datasets"])
def test_every_format_is_read(tmp_path: Path, suffix: str) -> None:
    import datasets

    rows = datasets.Dataset.from_list(colour_rows(20))
    path = tmp_path / f"rows.{suffix}"
    match suffix:
        case "csv":
            rows.to_csv(path)
        case "jsonl":
            rows.to_json(path)
        case "parquet":
            rows.to_parquet(path)
        case _:
            rows.save_to_disk(path)
    found = read_examples(path, Columns())
    assert [(e.text, e.label) for e, _ in found] == [(r["text"], r["label"]) for r in colour_rows(20)]


def test_class_numbers_of_datasets_have_names(tmp_path: Path) -> None:
    import datasets

    kinds = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=kinds).save_to_disk(tmp_path / "d")
    assert [e.label for e, _ in read_examples(tmp_path / "d", Columns())] == ["good", "bad"]


def test_faults_are_refused_and_dropped(tmp_path: Path) -> None:
    good = examples(60)
    cases = {
        "duplicates": (
            [*[(e, "train") for e, _ in good], (good[0][0], "test")],
            "1 test rows are also in another part",
        ),
        "unseen": ([*[(e, "train") for e, _ in good], (Example("x", "mauve"), "test")], "label 'mauve' of a test row"),
        "rare": (
            [*[(e, "train") for e, _ in good], (Example("x", "mauve"), "train")],
            "class 'mauve' has one training",
        ),
        "empty": ([*good, (Example("  ", "red"), "")], "row 61 cannot be read: the text is empty"),
    }
    for fault, (rows, message) in cases.items():
        with pytest.raises(DataError, match=message):
            make_splits(rows)
        data = make_splits([*rows, (Example("y y y", "red"), "test")], drop=[fault])
        assert sum(data.dropped.values()) == 1
    with pytest.raises(DataError, match="unknown fault to drop 'dupes'"):
        make_splits(good, drop=["dupes"])
    with pytest.raises(DataError, match=r"shares of validation and test must be positive .*, got \(0.0, 0.2\)"):
        make_splits(good, shares=(0.0, 0.2))
    with pytest.raises(DataError, match="no validation rows are left"):
        make_splits([*good, (Example("x", "mauve"), "validation")], drop=["unseen"])


def test_bad_rows(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", colour_rows(3))
    with pytest.raises(DataError, match="row 1: no column 'body'; it has: text, label"):
        read_examples(file, Columns(text="body"))
    (tmp_path / "b.jsonl").write_text('{"text": "x", "label": null}\n')
    with pytest.raises(DataError, match="label None is neither"):
        read_examples(tmp_path / "b.jsonl", Columns())
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(DataError, match="has no rows"):
        read_examples(tmp_path / "c.jsonl", Columns())
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="is no datasets directory"):
        read_examples(tmp_path / "d", Columns())
    (tmp_path / "e.jsonl").write_text('{"text": "x", "label": "a", "part": "trian"}\n')
    with pytest.raises(DataError, match="unknown split 'trian'; did you mean 'train'"):
        read_examples(tmp_path / "e.jsonl", Columns(split="part"))


def test_dropping_goes_on_until_nothing_is_rare() -> None:
    """The row that a rare label takes with it had the second-last "b"."""
    rows = [(Example(f"t{i}", ("a", "c")), "train") for i in range(8)]
    rows += [(Example("x", ("b", "d")), "train"), (Example("y", ("b", "a")), "train")]
    rows += [(Example(f"v{i}", ("a",)), "validation") for i in range(3)]
    rows += [(Example("u", ("a", "b")), "test"), (Example("w", ("c",)), "test")]
    data = make_splits(rows, drop=["rare"])
    assert {label for e in data.train for label in e.label} == {"a", "c"}  # type: ignore[union-attr]
    assert [e.text for e in data.test] == ["w"]
    assert data.dropped["rare or unseen"] == 3
    with pytest.raises(DataError, match="label 'z' of a test row never occurs in training"):
        make_splits([*rows, (Example("q", ("z",)), "test")], drop=["rare"])


@pytest.mark.parametrize(
    ("written", "wanted", "labels"),
    [
        (["0", "1"], "auto", ["0", "1"]),
        (["3.5", "4"], "auto", [3.5, 4.0]),
        (["1", "4"], "numbers", [1.0, 4.0]),
        (["3.5", "good"], "auto", ["3.5", "good"]),
        (["3.5", "4"], "names", ["3.5", "4"]),
        (["nan", "4.5"], "auto", ["nan", "4.5"]),
    ],
)
def test_numbers_of_a_csv(tmp_path: Path, written: list[str], wanted: str, labels: list[object]) -> None:
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"t,{value}\n" for value in written))
    found = read_examples(tmp_path / "d.csv", Columns(labels=wanted))
    assert [e.label for e, _ in found] == labels


def test_numbers_of_json(tmp_path: Path) -> None:
    for values, wanted in (
        ([1, 2.5], [1.0, 2.5]),
        ([1, 2], ["1", "2"]),
        ([1.0, 0.0], ["1", "0"]),
        ([True, False], ["True", "False"]),
    ):
        file = write_jsonl(tmp_path / "d.jsonl", [{"text": "t", "label": value} for value in values])
        assert [e.label for e, _ in read_examples(file, Columns())] == wanted
    file = write_jsonl(tmp_path / "d.jsonl", [{"text": "t", "label": "x"}])
    with pytest.raises(DataError, match="row 1: label 'x' is no finite number"):
        read_examples(file, Columns(labels="numbers"))
    with pytest.raises(DataError, match="unknown meaning of labels 'number'; did you mean 'numbers'"):
        read_examples(file, Columns(labels="number"))


def test_kinds_are_found() -> None:
    def of(*labels: object) -> Classification:
        return Classification.of([Example("t", label) for label in labels])  # type: ignore[arg-type]

    assert of("b", "a") == Classification("single", ("a", "b"))
    assert of(("b", "a"), ("c",)) == Classification("multi", ("a", "b", "c"))
    assert of(1.0, 2.5).kind == "regression"
    with pytest.raises(DataError, match="labels mix names and numbers"):
        of("a", 1.0)
    with pytest.raises(DataError, match="training has one class only, 'a'"):
        of("a", "a")
    with pytest.raises(DataError, match="training has no labels, every list is empty"):
        of((), ())
    with pytest.raises(DataError, match="label 'z' was not in training"):
        of("a", "b").targets([Example("t", "z")])
    with pytest.raises(DataError, match="gives one label a text, and a row has 2"):
        of("a", "b").targets([Example("t", ("a", "b"))])
    with pytest.raises(DataError, match="gives numbers, and a label is 'a'"):
        of(1.0, 2.5).targets([Example("t", "a")])
    assert of(("a",), ("b",)).targets([Example("t", ())]).tolist() == [[0, 0]]


def test_targets_losses_and_decisions() -> None:
    single = Classification("single", ("a", "b"))
    assert single.targets([Example("", "b")]).tolist() == [1]
    assert single.decisions(np.array([[0.1, 0.9]])).tolist() == [1]
    multi = Classification("multi", ("a", "b", "c"))
    assert multi.targets([Example("", ("c", "a"))]).tolist() == [[1, 0, 1]]
    assert multi.decisions(np.array([[2.0, -2.0, 0.1]]), [0.5, 0.5, 0.9]).tolist() == [[1, 0, 0]]
    number = Classification("regression", ())
    assert number.decisions(np.array([[3.5]])).tolist() == [3.5]
    logits = torch.tensor([[2.0, 0.0]])
    assert single.loss(logits, {"labels": torch.tensor([0])}).item() == pytest.approx(0.1269, abs=1e-4)
    assert multi.loss(torch.zeros(1, 3), {"labels": torch.ones(1, 3)}).item() == pytest.approx(0.6931, abs=1e-4)
    assert number.loss(torch.tensor([[3.0]]), {"labels": torch.tensor([1.0])}).item() == pytest.approx(4.0)
    assert single.class_weights([Example("", "a")] * 3 + [Example("", "b")]).tolist() == pytest.approx([2 / 3, 2])


def test_thresholds_are_tuned_by_the_score() -> None:
    task = Classification("multi", ("a", "b"))
    truth = np.array([[1, 0]] * 10 + [[0, 1]] * 10, np.float32)
    logits = np.where(truth > 0, -0.5, -2.0)  # right order, far under the usual threshold
    _, exact = metric("multi")
    thresholds = task.tune_thresholds(logits, truth, exact)
    assert exact(truth, task.decisions(logits)) == 0
    assert exact(truth, task.decisions(logits, thresholds)) == 1
    assert Classification("single", ("a", "b")).tune_thresholds(logits, truth, exact) == []


def test_metrics() -> None:
    truth, found = np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])
    assert metric("single") == ("accuracy", metric("single", "accuracy")[1])
    assert metric("single")[1](truth, found) == 0.75
    assert metric("single", "macro_f1")[1](truth, found) == pytest.approx(f1_score(truth, found, average="macro"))
    assert metric("regression", "spearman")[1](np.array([1.0, 2, 3]), np.array([10.0, 20, 25])) == pytest.approx(1)
    assert metric("regression")[1](np.array([1.0, 2, 3]), np.array([1.0, 2, 3])) == 1
    with pytest.raises(OptionError, match="unknown metric for multi labels 'accuracy'"):
        metric("multi", "accuracy")
