from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2
from tests.conftest import write_jsonl

from louver.decode import Span
from louver.errors import DataError, OptionError
from louver.tasks import Answering, Columns, Example, Tagging, learn, make_splits, metric, read_examples, task_of
from louver.tasks.data import objects
from louver.tasks.spans import read_answers, read_spans, read_tagged_words


def test_spans_in_every_form() -> None:
    expected = (Span(0, 4, "per"), Span(9, 13, "org"))
    text = "Jane met Acme"
    assert read_spans([[9, 13, "org"], [0, 4, "per"]], text, "row 1") == expected
    assert read_spans([{"start": 0, "end": 4, "label": "per"}, [9, 13, "org"]], text, "row 1") == expected


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ("x", r"row 1: spans must be a list such as \[\[0, 5, \"person\"\]\], got 'x'"),
        ([[0, 99, "per"]], r"row 1: span \[0, 99\] is not within the 13 characters; mend the row"),
        ([[4, 4, "per"]], r"span \[4, 4\] is not within"),
        ([[0, 4, "per"], [2, 6, "org"]], r"spans \[0, 4, 'per'\] and \[2, 6, 'org'\] overlap; keep one"),
        ([[0, 4]], r"a span is \[start, end, label\] with whole numbers and a name, got \[0, 4\]"),
        ([[0, 4, ""]], "with whole numbers and a name"),
    ],
)
def test_spans_that_cannot_be(spans: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_spans(spans, "Jane met Acme", "row 1")


def test_words_become_text_and_tags_spans() -> None:
    words, tags = ["Jane", "Doe", "in", "New", "York", "!"], ["B-per", "I-per", "O", "I-place", "E-place", "O"]
    assert read_tagged_words(words, tags, "row 1") == (
        "Jane Doe in New York !",
        (Span(0, 8, "per"), Span(12, 20, "place")),
    )
    # Chinese characters are put together again, so that a tokenizer sees the text as it was written
    assert read_tagged_words(list("我在北京"), ["O", "O", "B-place", "I-place"], "row 1") == (
        "我在北京",
        (Span(2, 4, "place"),),
    )
    assert read_tagged_words(["a", "b"], ["S-x", "B-x"], "row 1")[1] == (Span(0, 1, "x"), Span(2, 3, "x"))


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        (["a"], ["O", "O"], "row 1: words and tags must be two lists of the same length"),
        (["a"], ["per"], "row 1: tag 'per' is neither O nor B-…, I-…; write tags in the BIO scheme"),
        (["a", ""], ["O", "O"], "row 1: word '' is no text; drop it with its tag"),
    ],
)
def test_words_that_cannot_be(words: Any, tags: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tagged_words(words, tags, "row 1")


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"text": ["a", "b"], "answer_start": [1]}, "2 answers with the starts"),
        ({"text": ["x"]}, "1 answers with the starts"),
        ({"text": None, "answer_start": 1}, "an answer is a text"),
        ([5], "an answer is a text"),
        ([{"start": 3}], "an answer is a text"),
        ([{"text": 5, "start": 0}], "an answer is a text"),
        ([{"text": "the", "start": "0"}], "an answer is a text"),
        (5, "an answer is a text"),
    ],
)
def test_answers_that_are_none(answers: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"row 1: .*{says}"):
        read_answers(answers, "the sea", "row 1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["他", "说", "，", "北京", "！"], "他说，北京！"),
        (["나는", "서울에서", "산다"], "나는 서울에서 산다"),
        (["用", "BERT", "读"], "用 BERT 读"),
    ],
)
def test_spaces_are_where_a_script_has_them(words: list[str], text: str) -> None:
    assert read_tagged_words(words, ["O"] * len(words), "row 1")[0] == text


def test_answers_in_every_form() -> None:
    text = "The tower is in Paris, Paris in France."
    expected = (Span(16, 21, ""),)
    assert read_answers({"text": ["Paris"], "answer_start": [16]}, text, "row 1") == expected
    assert read_answers([{"text": "Paris", "start": 16}], text, "row 1") == expected
    assert read_answers("Paris", text, "row 1") == expected
    nothings: list[Any] = [None, "", [], {"text": [], "answer_start": []}]
    for nothing in nothings:
        assert read_answers(nothing, text, "row 1") == ()
    with pytest.raises(DataError, match="row 1: answer 'Paris' does not stand in the text at character 17; mend"):
        read_answers({"text": ["Paris"], "answer_start": [17]}, text, "row 1")
    with pytest.raises(DataError, match="answer 'Rome' does not stand in the text"):
        read_answers("Rome", text, "row 1")


def test_files_of_both_tasks(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tokens": ["Ann", "in", "Rome"], "tags": ["B-per", "O", "B-place"]},
        {"text": "Bob", "spans": [[0, 3, "per"]]},
    ]
    found = read_examples(write_jsonl(tmp_path / "tags.jsonl", rows), Columns.of("tag"), "tag")
    assert [example.label for example, _ in found] == [
        (Span(0, 3, "per"), Span(7, 11, "place")),
        (Span(0, 3, "per"),),
    ]
    asked = [{"question": "Where?", "context": "In Rome.", "answers": {"text": ["Rome"], "answer_start": [3]}}]
    ((example, _),) = read_examples(write_jsonl(tmp_path / "answers.jsonl", asked), Columns.of("answer"), "answer")
    assert example.input == ("Where?", "In Rome.")
    (tmp_path / "tags.csv").write_text('text,spans\nBob,"[[0, 3, ""per""]]"\n', "utf8")
    ((example, _),) = read_examples(tmp_path / "tags.csv", Columns.of("tag"), "tag")
    assert example.label == (Span(0, 3, "per"),)
    with pytest.raises(DataError, match="row 1: no column 'spans'; it has: text"):
        read_examples(write_jsonl(tmp_path / "bare.jsonl", [{"text": "a"}]), Columns.of("tag"), "tag")


def test_tags_are_named_as_datasets_names_them(tmp_path: Path) -> None:
    import datasets

    names = datasets.ClassLabel(names=["O", "B-per", "I-per"])
    kinds = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(names)})
    datasets.Dataset.from_dict({"tokens": [["Ann", "Lee"]], "tags": [[1, 2]]}, kinds).save_to_disk(tmp_path / "d")
    ((example, _),) = read_examples(tmp_path / "d", Columns.of("tag"), "tag")
    assert example.label == (Span(0, 7, "per"),)


def test_scores_are_those_of_seqeval() -> None:
    """On words with BIO tags, where both can be asked."""
    rng = np.random.default_rng(0)
    tags = ["O", "B-a", "I-a", "B-b", "I-b"]

    def sensible() -> list[str]:
        found: list[str] = []
        for tag in rng.choice(tags, 9):
            before = found[-1] if found else "O"
            found.append("O" if tag[0] == "I" and before[2:] != tag[2:] else str(tag))
        return found

    pairs = [(sensible(), sensible()) for _ in range(200)]
    words = [f"w{i}" for i in range(9)]
    truth, predicted = (objects([read_tagged_words(words, pair[i], "")[1] for pair in pairs]) for i in (0, 1))
    lists = [[pair[i] for pair in pairs] for i in (0, 1)]
    for name, theirs in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        _, scorer = metric("tag", name)
        assert scorer(truth, predicted) == pytest.approx(theirs(*lists, mode="strict", scheme=IOB2))


def test_answers_are_compared_as_squad_does() -> None:
    truth = objects([(Span(0, 9, "the Tower"), Span(0, 5, "Tower")), (), (Span(0, 3, "北京市"),), (Span(0, 1, "x"),)])
    _, exact = metric("answer", "exact_match")
    _, overlap = metric("answer", "f1")
    right = objects(["The tower!", "", "北京市", "x"])
    assert exact(truth, right) == overlap(truth, right) == 1
    near = objects(["big tower", "Paris", "北京", ""])
    assert exact(truth, near) == 0
    assert overlap(truth, near) == pytest.approx((2 / 3 + 0 + 0.8 + 0) / 4)


def test_what_a_training_set_must_have() -> None:
    with pytest.raises(DataError, match="no training row has a span"):
        Tagging.of([Example("a", ())])
    with pytest.raises(DataError, match="tagging needs spans, and a row has 'x'; read the rows for the task 'tag'"):
        Tagging.of([Example("a", "x")])
    with pytest.raises(DataError, match="no training row has an answer"):
        Answering.of([Example("q", (), pair="c")])
    with pytest.raises(DataError, match="answering needs a question and a text in every row"):
        Answering.of([Example("q", ())])
    with pytest.raises(DataError, match="answering needs answers, and a row has 'x'"):
        Answering.of([Example("q", "x", pair="c")])
    with pytest.raises(DataError, match="some rows have a second text and others have none"):
        learn("classify", [Example("a", "x"), Example("b", "y", pair="c")])
    with pytest.raises(OptionError, match="unknown task 'tags'; did you mean 'tag'"):
        learn("tags", [])
    with pytest.raises(DataError, match="span type 'b' was not in training, which had: a"):
        Tagging(("a",)).targets([Example("x", (Span(0, 1, "b"),))])
    for task in (Tagging(("a",)), Answering()):
        with pytest.raises(OptionError, match="class weights are for classifications"):
            task.class_weights([])


def test_a_window_is_taught_the_answer_that_it_holds() -> None:
    """Whichever of several it is; a window that holds none is taught none."""
    text = "sea and moss and sea"
    (target,) = Answering().targets([Example("where?", (Span(0, 3, ""), Span(17, 20, "")), pair=text)])
    offsets = np.asarray([(-1, -1), (-1, -1), (0, 3), (4, 7), (8, 12), (13, 16), (17, 20), (-1, -1)])
    whole = Answering().teach(target, text, offsets)["where"]
    late = Answering().teach(target, text, np.concatenate([offsets[:2], offsets[4:]]))["where"]
    none = Answering().teach(target, text, np.concatenate([offsets[:2], offsets[3:6], offsets[-1:]]))["where"]
    assert (whole.tolist(), late.tolist(), none.tolist()) == ([2, 2], [4, 4], [0, 0])


def test_the_threshold_for_no_answer() -> None:
    from louver.decode import TokenLogits

    offsets = np.asarray([[-1, -1], [0, 1]])
    scored = objects([TokenLogits((np.asarray([[0, 0], [s, 0]]),), (offsets,), "x") for s in (1.0, 2.0, 8.0, 9.0)])
    truth = objects([(), (), (Span(0, 1, "x"),), (Span(0, 1, "x"),)])
    _, exact = metric("answer", "exact_match")
    task = Answering()
    (limit,) = task.tune_thresholds(scored, truth, exact)
    assert 2 <= limit < 8
    assert exact(truth, task.decisions(scored, [limit])) == 1
    # where every question has an answer, there is always one
    (always,) = task.tune_thresholds(scored[2:], truth[2:], exact)
    assert task.decisions(scored, [always]).tolist() == ["x"] * 4


def test_rare_types_are_told(tmp_path: Path) -> None:
    rows = [{"text": f"Ann {i}", "spans": [[0, 3, "per"]]} for i in range(20)]
    rows[3]["spans"] = [[0, 3, "once"]]
    found = read_examples(write_jsonl(tmp_path / "rare.jsonl", rows), Columns.of("tag"), "tag")
    splits = make_splits(found, drop=["rare", "unseen"])
    assert {span.label for example in splits.train for span in example.label} == {"per"}  # type: ignore[union-attr]


def test_a_card_names_its_task(tuned: Any) -> None:
    card = tuned.card
    assert task_of(card).name == "classify"
    tagger = card.model_copy(update={"task": "tag", "labels": ["a"], "kind": None})
    assert task_of(tagger) == Tagging(("a",))
    assert task_of(card.model_copy(update={"task": "answer"})).name == "answer"
    assert json.loads(tagger.model_dump_json())["task"] == "tag"
