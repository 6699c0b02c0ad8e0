"""Pairs, spans and answers, from rows to a served answer: fine-tuned, exported, asked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import WORDS, write_jsonl

import louver
from louver.bundle import Bundle
from louver.decode import TokenLogits
from louver.encoders import read_bundle
from louver.errors import OptionError
from louver.export import export
from louver.measure.baselines import Baseline
from louver.measure.evaluate import evaluate
from louver.tasks import Columns, Splits, make_splits, read_examples
from louver.training import TrainingOptions, finetune

OPTIONS = TrainingOptions(epochs=8, learning_rate=3e-3, head_learning_rate=1e-2, max_length=64)
ALL = [word for words in WORDS.values() for word in words.split()]


def splits(path: Path, rows: list[dict[str, Any]], task: str, **columns: str) -> Splits:
    return make_splits(read_examples(write_jsonl(path, rows), Columns.of(task, **columns), task), drop=["duplicates"])


def tagged(count: int) -> list[dict[str, Any]]:
    """Words of red and blue are to be found."""
    rng, rows = random.Random(0), []
    for _ in range(count):
        text, spans = "", []
        for word in rng.choices(ALL, k=10):
            start = len(text) + bool(text)
            text += f" {word}" if text else word
            spans += [[start, len(text), c] for c in ("red", "blue") if word in WORDS[c].split()]
        rows.append({"text": text, "spans": spans})
    return rows


def asked(count: int) -> list[dict[str, Any]]:
    """Which word is red? One text in five has none."""
    rng, rows = random.Random(1), []
    for _ in range(count):
        words = rng.sample(WORDS["blue"].split() + WORDS["green"].split(), 6)
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if rng.random() < 0.8:
            words[rng.randrange(6)] = answer = rng.choice(WORDS["red"].split())
            answers = {"text": [answer], "answer_start": [" ".join(words).index(answer)]}
        rows.append({"question": "which is red", "context": " ".join(words), "answers": answers})
    return rows


def paired(count: int) -> list[dict[str, str]]:
    """Are both texts of one colour?"""
    rng, rows = random.Random(2), []
    for _ in range(count):
        first, second = rng.choice(sorted(WORDS)), rng.choice(sorted(WORDS))
        second = first if rng.random() < 0.3 else second
        texts = [" ".join(rng.choices(WORDS[colour].split(), k=3)) for colour in (first, second)]
        rows.append({"text": texts[0], "pair": texts[1], "label": "same" if first == second else "other"})
    return rows


@pytest.fixture(scope="module")
def tagger(fresh_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Splits]:
    home = tmp_path_factory.mktemp("tag")
    data = splits(home / "rows.jsonl", tagged(240), "tag")
    return finetune(fresh_bundle, data, into=home / "b", task="tag", options=OPTIONS, progress=False), data


def test_spans_are_learned_and_found(tagger: tuple[Bundle, Splits]) -> None:
    bundle, data = tagger
    card = bundle.card
    assert (card.task, card.kind, card.labels, card.pooling) == ("tag", None, ["blue", "red"], "none")
    assert evaluate(bundle, data.test).score.value > 0.9
    with louver.Predictor(bundle) as predictor:
        (found,) = predictor.predict(["moss sea fern rose"])
        row = found.to_row()
    assert [(s["start"], s["end"], s["label"], s["text"]) for s in row["spans"]] == [
        (5, 8, "blue", "sea"),
        (14, 18, "red", "rose"),
    ]


def test_exported_spans_equal_torch_at_every_length(tagger: tuple[Bundle, Splits], tmp_path: Path) -> None:
    bundle, _ = tagger
    graphs = export(bundle, into=tmp_path / "onnx")
    texts = ["sea", "rose moss " * 4, "ruby " * 70, "fern sky " * 150]
    with louver.Predictor(bundle) as here, louver.Predictor(graphs) as there:
        for a, b in zip(here.logits(texts), there.logits(texts), strict=True):
            assert np.abs(a.windows[0] - b.windows[0]).max() < 1e-3
        alone = [there.logits([text])[0] for text in texts]
        for a, b in zip(alone, there.logits(texts), strict=True):
            assert np.abs(a.windows[0] - b.windows[0]).max() < 1e-4
        found, expected = ([span[:4] for span in one.predict(texts)[3].spans or ()] for one in (there, here))
    assert len(expected) > 100
    assert found == expected
    dense = Baseline(bundle, "dense", max_length=512).logits(texts[:2])
    assert all(isinstance(one, TokenLogits) for one in dense)


def test_spans_are_found_across_windows(tagger: tuple[Bundle, Splits]) -> None:
    """Every word is answered once, in its place, whatever window it came in."""
    bundle, _ = tagger
    text = "moss sea " * 600  # 1,200 words, more than the 512 tokens that are read
    with louver.Predictor(bundle, truncation="window") as predictor:
        (found,) = predictor.predict([text])
    assert found.tokens_cut == 0
    starts = {span.start for span in found.spans or ()}
    assert len(starts) == len(found.spans or ())
    assert len([s for s in starts if (s - 5) % 9 == 0]) > 540


def test_answers_are_learned_and_found(fresh_bundle: Bundle, tmp_path: Path) -> None:
    data = splits(tmp_path / "rows.jsonl", asked(500), "answer")
    bundle = finetune(fresh_bundle, data, into=tmp_path / "b", task="answer", options=OPTIONS, progress=False)
    assert (bundle.card.task, bundle.card.inputs, len(bundle.card.thresholds)) == ("answer", "pair", 1)
    assert evaluate(bundle, data.test).score.value > 0.9
    reader = read_bundle(bundle)
    assert reader.separator == 102  # MiniLM's encoder tells segments apart
    with louver.Predictor(bundle) as predictor:
        asks = "which is red"
        found = predictor.predict([(asks, "moss sea ruby leaf"), (asks, "moss sea frog leaf"), asks, (asks, "")])
        (far,) = predictor.predict([(asks, "moss " * 400 + "ruby " + "leaf " * 60)])
    assert found[0].answer is not None
    assert found[0].answer[:4] == (9, 13, "", "ruby")
    assert found[0].to_row()["answer"].keys() == {"start", "end", "text", "score"}
    assert far.answer is not None
    assert far.answer.start == 400 * 5
    assert found[1].answer is None
    assert found[1].to_row()["answer"] is None
    assert "this model reads pairs of texts, got str" in (found[2].error or "")
    assert "the text is empty" in (found[3].error or "")


def test_pairs_are_learned_and_answered(fresh_bundle: Bundle, tmp_path: Path) -> None:
    data = splits(tmp_path / "rows.jsonl", paired(600), "classify", pair="pair")
    bundle = finetune(fresh_bundle, data, into=tmp_path / "b", options=OPTIONS, progress=False)
    assert (bundle.card.task, bundle.card.inputs) == ("classify", "pair")
    graphs = export(bundle, into=tmp_path / "onnx")
    pairs = [example.input for example in data.test[:40]]
    with louver.Predictor(bundle) as here, louver.Predictor(graphs) as there:
        assert np.abs(here.logits(pairs) - there.logits(pairs)).max() < 1e-3
    assert evaluate(graphs, data.test).score.value > 0.6


def test_what_spans_and_answers_cannot_have(fresh_bundle: Bundle, tmp_path: Path) -> None:
    data = splits(tmp_path / "rows.jsonl", tagged(40), "tag")
    with pytest.raises(OptionError, match="epochs 0 leaves the linear probe, which spans and answers do not have"):
        finetune(fresh_bundle, data, into=tmp_path / "b", task="tag", options=TrainingOptions(epochs=0), progress=False)
    options = TrainingOptions(epochs=1, class_weights=True)
    with pytest.raises(OptionError, match="class weights are for classifications"):
        finetune(fresh_bundle, data, into=tmp_path / "b", task="tag", options=options, progress=False)
