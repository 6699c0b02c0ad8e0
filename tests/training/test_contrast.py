from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import small_bert, write_jsonl

import louver
from louver.bundle import Bundle
from louver.errors import DataError, OptionError
from louver.tasks.similar import Similar, check_similar, read_similar
from louver.training import ContrastOptions, contrast
from louver.training.contrast import _split

OPTIONS = ContrastOptions(epochs=6, batch_size=16, learning_rate=2e-3, max_length=32)
TOPICS = [
    ["rose", "fire", "ruby"],
    ["sea", "sky", "ice"],
    ["leaf", "frog", "moss"],
    ["bread", "milk", "salt"],
    ["king", "queen", "crown"],
    ["car", "bus", "train"],
    ["north", "south", "east"],
    ["gold", "iron", "silver"],
    ["dog", "cat", "horse"],
    ["rain", "snow", "wind"],
    ["book", "page", "ink"],
    ["drum", "flute", "harp"],
]


def about(topic: int, rng: random.Random) -> str:
    return " ".join(rng.choices(TOPICS[topic], k=4))


def pairs(count: int, seed: int = 0) -> list[Similar]:
    """Two texts on one topic, and one on another."""
    rng = random.Random(seed)
    topics = [rng.sample(range(len(TOPICS)), 2) for _ in range(count)]
    return [Similar((about(one, rng), about(one, rng), about(other, rng))) for one, other in topics]


def separation(bundle: Bundle) -> float:
    """How much nearer texts on one topic are than texts on two."""
    rng = random.Random(9)
    topics = np.arange(len(TOPICS)).repeat(4)
    with louver.Predictor(bundle) as predictor:
        found = predictor.predict([about(int(topic), rng) for topic in topics])
    vectors = np.stack([prediction.embedding for prediction in found if prediction.embedding is not None])
    same, near = topics[:, None] == topics[None], vectors @ vectors.T
    return float(near[same & ~np.eye(len(topics), dtype=bool)].mean() - near[~same].mean())


@pytest.mark.parametrize("kind", ["pairs", "negatives", "scored"])
def test_what_belongs_together_comes_near(kind: str, fresh_bundle: Bundle, tmp_path: Path) -> None:
    rows = pairs(200)
    if kind == "pairs":
        rows = [Similar(row.texts[:2]) for row in rows]
    if kind == "scored":
        rows = [Similar((r.texts[0], r.texts[1 + i % 2]), 1.0 - i % 2) for i, r in enumerate(rows)]
    made = contrast(fresh_bundle, rows, into=tmp_path / "b", options=OPTIONS, progress=False)
    assert separation(made) > separation(fresh_bundle) + 0.2
    record = made.card.history[-1]
    assert record.step == "contrast"
    assert record.numbers["validation"]["minus the loss"] > record.numbers["before"]["minus the loss"]


def test_texts_alone_are_their_own_partners(fresh_bundle: Bundle, tmp_path: Path) -> None:
    """SimCSE spreads texts; the loss of held-out ones falls, judged with the same dropout each time."""
    rows = [Similar(row.texts[:1]) for row in pairs(96)]
    made = contrast(fresh_bundle, rows, into=tmp_path / "b", options=OPTIONS, progress=False)
    numbers = made.card.history[-1].numbers
    assert numbers["validation"]["minus the loss"] > numbers["before"]["minus the loss"]
    assert made.card.task == "embed"


def test_scored_pairs_choose_the_epoch(fresh_bundle: Bundle, tmp_path: Path) -> None:
    judges = [Similar((r.texts[0], r.texts[1 + i % 2]), 1.0 - i % 2) for i, r in enumerate(pairs(40, seed=3))]
    rows = [Similar(row.texts[:2]) for row in pairs(96)]
    made = contrast(fresh_bundle, rows, into=tmp_path / "b", options=OPTIONS, validation=judges, progress=False)
    numbers = made.card.history[-1].numbers
    assert numbers["validation"]["spearman"] == round(max(epoch["score"] for epoch in numbers["epochs"]), 4)


def test_sentence_transformers_loads_a_bundle_as_it_is(long_bundle: Bundle) -> None:
    """In a process that never heard of louver: the same vectors up to the checkpoint's own length, where it stops."""
    texts = ["red rose", "the sea is blue " * 10, "leaf " * 200]
    script = f"""
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(long_bundle.path)!r}, device="cpu", local_files_only=True)
vectors = model.encode({texts!r}, show_progress_bar=False).tolist()
print(json.dumps([model.max_seq_length, "louver" in sys.modules, vectors]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    length, loaded, vectors = json.loads(done.stdout.splitlines()[-1])
    assert (length, loaded) == (64, False)
    with louver.Predictor(long_bundle, truncation="head") as predictor:
        ours = [prediction.embedding for prediction in predictor.predict(texts)]
    for short in (0, 1):
        assert np.abs(ours[short] - np.asarray(vectors[short])).max() < 1e-5
    assert np.abs(ours[2] - np.asarray(vectors[2])).max() > 1e-3  # it read 64 tokens of them


def test_the_long_way_reads_everything(long_bundle: Bundle, tuned: Bundle) -> None:
    texts = ["red rose", "leaf " * 200]
    model = louver.sentence_transformer(long_bundle)
    with louver.Predictor(long_bundle) as predictor:
        ours = np.stack([p.embedding for p in predictor.predict(texts) if p.embedding is not None])
    assert np.abs(ours - model.encode(texts, show_progress_bar=False)).max() < 1e-5
    with pytest.raises(OptionError, match="is no bundle of embeddings with transformers files"):
        louver.sentence_transformer(tuned)


def test_rows_from_files(tmp_path: Path) -> None:
    rows = [{"text": "a", "pair": "b", "negative": "c", "label": "0.5"}] * 2
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read_similar(file)[0] == Similar(("a",))
    assert read_similar(file, pair="pair", negative="negative")[0] == Similar(("a", "b", "c"))
    assert read_similar(file, pair="pair", score="label")[0] == Similar(("a", "b"), 0.5)
    lists = write_jsonl(tmp_path / "lists.jsonl", [{"text": "a", "pair": "b", "negative": ["c", "d"]}])
    assert read_similar(lists, pair="pair", negative="negative")[0].texts == ("a", "b", "c", "d")


def test_rows_that_cannot_be(tmp_path: Path, long_bundle: Bundle) -> None:
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"text": "a", "pair": "b", "label": "high"}])
    with pytest.raises(DataError, match="row 1: score 'high' is no number; mend the row"):
        read_similar(bad, pair="pair", score="label")
    with pytest.raises(DataError, match="row 1: no column 'other'; it has: text, pair, label"):
        read_similar(bad, pair="other")
    with pytest.raises(DataError, match="a negative or a score stands beside a pair"):
        read_similar(bad, score="label")
    with pytest.raises(DataError, match="row 1: the text is empty"):
        read_similar(write_jsonl(tmp_path / "empty.jsonl", [{"text": ""}]))
    with pytest.raises(DataError, match="there are no rows of texts"):
        check_similar([])
    with pytest.raises(DataError, match="rows differ in their number of texts"):
        check_similar([Similar(("a",)), Similar(("a", "b"))])
    with pytest.raises(DataError, match="a score belongs to two texts"):
        check_similar([Similar(("a", "b", "c"), 1.0)])
    with pytest.raises(
        DataError, match="share no text with the others, and 2 rows have 2 such parts; give four rows or more"
    ):
        contrast(long_bundle, [Similar(("a",)), Similar(("b",))], into=tmp_path / "b", progress=False)
    with pytest.raises(DataError, match="validation needs scored pairs"):
        contrast(long_bundle, [Similar(("a",))], into=tmp_path / "b", validation=[Similar(("a", "b"))], progress=False)
    long = ContrastOptions(max_length=4096)
    with pytest.raises(OptionError, match="reads 2048 tokens, got max_length=4096; extend it first"):
        contrast(long_bundle, [Similar((c,)) for c in "abcd"], into=tmp_path / "b", options=long, progress=False)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("negatives", {"text": "a", "pair": "b", "negative": None}, "a text must be a string, got NoneType"),
        ("number", {"text": "a", "pair": "b", "negative": 3}, "a text must be a string, got int"),
    ]
    for name, row, says in cases:
        with pytest.raises(DataError, match=f"row 1: {says}"):
            read_similar(write_jsonl(tmp_path / f"{name}.jsonl", [row]), pair="pair", negative="negative")
    for score in (float("nan"), float("inf"), None, "high"):
        rows = write_jsonl(tmp_path / "scores.jsonl", [{"text": "a", "pair": "b", "score": score}])
        with pytest.raises(DataError, match=r"row 1: score .* is no number; mend the row"):
            read_similar(rows, pair="pair", score="score")
    marks = [Similar(("\u0301", "a"), 1.0), Similar(("b", "c"), 0.0)]
    with pytest.raises(DataError, match="no character that the tokenizer knows"):
        contrast(long_bundle, [Similar(("a",))] * 9, into=tmp_path / "b", validation=marks, progress=False)


def test_held_out_rows_share_no_text_with_the_others() -> None:
    rows = [Similar((f"question {i}", f"answer {i // 4}")) for i in range(40)]
    for seed in range(5):
        train, held = _split(rows, ContrastOptions(seed=seed, validation=0.2))
        assert len(train) + len(held) == 40
        assert 4 <= len(held) <= 8
        assert not {t for row in train for t in row.texts} & {t for row in held for t in row.texts}


def test_an_encoder_without_dropout_cannot_be_its_own_partner(tmp_path: Path, minilm_l3: Path) -> None:
    plain = {"hidden_dropout_prob": 0.0, "classifier_dropout": 0.3}  # that on attention weights is taken away
    small_bert(tmp_path / "m", minilm_l3, **plain)
    bundle = louver.extend(tmp_path / "m", into=tmp_path / "b", max_length=64)
    with pytest.raises(OptionError, match="the encoder has no dropout, so that a text's two readings are one"):
        contrast(bundle, [Similar((f"a {i}",)) for i in range(9)], into=tmp_path / "c", progress=False)
