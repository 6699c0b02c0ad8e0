"""Pretraining: what is read and asked, what is learned, and that a run is the same each time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.conftest import WORDS

from louver.bundle import Bundle
from louver.encoders import positions
from louver.encoders.load import load_plain
from louver.encoders.plug import base_of, plug
from louver.errors import DataError, ModelError, OptionError
from louver.text import Tokenizer
from louver.text.masking import IGNORED, Masking
from louver.training import PretrainingOptions, TrainingOptions, finetune, pretrain
from louver.training.corpus import Corpus, MaskedRows, PairedRows, collate_rows
from louver.training.masked import MaskedWords
from louver.training.pretrain import _split

SENTENCES = (
    "the red fire burns the old house",
    "a blue whale swims in the deep sea",
    "green moss grows on the wet stone",
    "the cold ice melts in the warm sun",
)


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(SENTENCES, k=rng.randint(1, 4))) for _ in range(count)]


@pytest.fixture
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.open(tiny)


def corpus_of(found: list[Any], tokenizer: Tokenizer, directory: Path, room: int = 62) -> Corpus:
    return Corpus.build(found, tokenizer, directory, room=room)


def test_a_corpus_holds_every_token_of_every_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    given = [*texts(30), "", None, "rose " * 200]
    corpus = corpus_of(given, tokenizer, tmp_path)
    assert corpus.unreadable == 2
    assert corpus.lengths.max() == 62
    for owner, text in enumerate([t for t in given if t]):
        pieces = [corpus.piece(int(n))[0] for n in np.flatnonzero(corpus.owners == owner)]
        np.testing.assert_array_equal(np.concatenate(pieces), tokenizer.encode([text])[0])
    with pytest.raises(DataError, match="none of 2 texts can be read; a corpus needs at least one"):
        corpus_of(["", "  "], tokenizer, tmp_path)


@pytest.mark.parametrize("packing", [True, False])
def test_rows_ask_for_text_alone_and_anew_in_every_epoch(tokenizer: Tokenizer, tmp_path: Path, packing: bool) -> None:
    corpus = corpus_of(texts(40), tokenizer, tmp_path)

    def rows(static: bool) -> MaskedRows:
        every = np.arange(len(corpus))
        return MaskedRows(corpus, every, tokenizer, Masking(), room=64, seed=3, packing=packing, static=static)

    dynamic = rows(static=False)
    assert len(dynamic) < 30 if packing else len(dynamic) == len(corpus)
    seen = []
    for row in (dynamic[i] for i in range(len(dynamic))):
        special = np.isin(row["input_ids"], [*tokenizer.prefix, *tokenizer.suffix])
        assert (row["asked"][special] == IGNORED).all()
        assert len(row["input_ids"]) == len(row["asked"]) == len(row["documents"]) == len(row["positions"]) <= 64
        seen.append(np.where(row["asked"] == IGNORED, row["input_ids"], row["asked"]))  # what stood there
    read = sorted(tuple(ids) for row in seen for ids in np.split(row, np.flatnonzero(row == tokenizer.prefix[0])[1:]))
    assert read == sorted(tuple(tokenizer.wrap(corpus.piece(n)[0])) for n in range(len(corpus)))
    first = [dynamic[i]["input_ids"] for i in range(len(dynamic))]
    for one, changes in ((dynamic, True), (rows(static=True), False)):
        one.set_epoch(1)
        again = [one[i]["input_ids"] for i in range(len(one))]
        assert changes == any(not np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@torch.no_grad()
def test_logits_of_hidden_tokens_are_those_of_each_text_alone(tiny: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, _ = load_plain(tiny, architecture="AutoModelForMaskedLM", new_head=True)
    plug(model, "full")
    corpus = corpus_of(texts(12), tokenizer, tmp_path)
    rows = MaskedRows(corpus, np.arange(12), tokenizer, Masking(), room=64, seed=0, packing=True, static=True)
    batch = collate_rows(tokenizer.pad_id, positions.offset(model.config))([rows[i] for i in range(len(rows))])
    logits, truth = MaskedWords(model)(batch)
    expected = []
    for row in range(len(rows)):
        for number in range(int(batch["documents"][row].max()) + 1):
            here = batch["documents"][row] == number
            alone = model(input_ids=batch["input_ids"][row, here][None]).logits[0]
            expected.append(alone[batch["asked"][row, here] != IGNORED])
    assert len(logits) == len(truth) > 10
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-4, atol=1e-4)
    assert base_of(model)(batch["input_ids"]).last_hidden_state.shape[:2] == batch["input_ids"].shape  # unhooked


@pytest.fixture(scope="module")
def pretrained(long_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    into = tmp_path_factory.mktemp("pretrained") / "bundle"
    options = PretrainingOptions(epochs=8, learning_rate=1e-2, batch_size=2, max_length=128, precision="float32")
    return pretrain(long_bundle, texts(90), into=into, options=options, progress=False)


def test_hidden_words_are_learned(pretrained: Bundle) -> None:
    numbers = pretrained.card.history[-1].numbers
    assert numbers["validation"]["loss"] < numbers["before"]["loss"] / 2
    assert numbers["validation"]["perplexity"] == pytest.approx(np.exp(numbers["validation"]["loss"]))


def test_the_same_seed_gives_the_same_model(long_bundle: Bundle, tmp_path: Path) -> None:
    options = PretrainingOptions(epochs=1, learning_rate=1e-2, batch_size=2, max_length=128, precision="float32")
    first, again = (
        pretrain(long_bundle, iter(texts(30)), into=tmp_path / name, options=options, progress=False) for name in "ab"
    )
    assert first.card.history[-1].numbers == again.card.history[-1].numbers
    assert (first.path / "model.safetensors").read_bytes() == (again.path / "model.safetensors").read_bytes()


def test_the_bundle_keeps_its_head_and_can_be_fine_tuned(pretrained: Bundle, colours: Path, tmp_path: Path) -> None:
    from louver.tasks import Columns, make_splits, read_examples

    model = transformers.AutoModelForMaskedLM.from_pretrained(pretrained.path)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (pretrained.card.task, pretrained.card.pooling) == ("embed", "mean")
    data = make_splits(read_examples(colours, Columns()))
    tuned = finetune(pretrained, data, into=tmp_path / "tuned", options=TrainingOptions(epochs=0), progress=False)
    assert [record.step for record in tuned.card.history] == ["extend", "pretrain", "finetune"]


def test_what_cannot_be_pretrained(long_bundle: Bundle, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"reads 2048 tokens, got max_length=4096; extend it first"):
        pretrain(long_bundle, texts(4), into=tmp_path / "x", options=PretrainingOptions(max_length=4096))
    with pytest.raises(DataError, match="the corpus has one; give two different ones"):
        pretrain(long_bundle, texts(1), into=tmp_path / "x", progress=False)
    found = Tokenizer.open(tiny)
    without = Tokenizer(found.core, found.prefix, found.suffix, found.pad_id)
    with pytest.raises(ModelError, match="has no mask token"):
        without.vocabulary()
    assert not (tmp_path / "x").exists()


def test_words_of_a_segmenter(tokenizer: Tokenizer) -> None:
    ((ids, words),) = tokenizer.encode_words(["redrose blue"], lambda _: ["red", "rose", " ", "blue"])
    assert len(ids) == len(words)
    assert words[-1] == 3
    with pytest.raises(OptionError, match="must give the text again when they are joined"):
        tokenizer.encode_words(["red rose"], str.split)


@pytest.mark.parametrize("wrong", ["next", "order"])
def test_pairs_are_wrong_half_the_time_and_hide_no_special(wrong: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = [f"{WORDS['red']} {i} {WORDS['blue']}" for i in range(400)]
    corpus = corpus_of(found, tokenizer, tmp_path)
    every = np.arange(len(corpus))
    rows = PairedRows(corpus, every, tokenizer, Masking(0.15), room=64, seed=0, static=False, wrong=wrong)
    marks = [int(rows[i]["wrong"]) for i in range(len(rows))]
    assert 0.42 < np.mean(marks) < 0.58
    for index in range(40):
        row = rows[index]
        filled = np.where(row["asked"] == IGNORED, row["input_ids"], row["asked"])
        specials = np.flatnonzero(np.isin(filled, [101, 102]))
        assert len(specials) == 3
        assert (row["asked"][specials] == IGNORED).all()
        if wrong == "order" or not row["wrong"]:
            assert len(row["input_ids"]) == rows.lengths[index]
        first, second = filled[1 : specials[1]], filled[specials[1] + 1 : -1]
        own = corpus.piece(index)[0]
        if wrong == "order":
            parts = [second, first] if row["wrong"] else [first, second]
            assert np.concatenate(parts).tolist() == own.tolist()
        else:
            assert first.tolist() == own[: len(first)].tolist()
            assert bool(row["wrong"]) or second.tolist() == own[len(first) :].tolist()
    rows.set_epoch(1)
    assert [int(rows[i]["wrong"]) for i in range(60)] != marks[:60]


def test_pairs_fit_into_the_room_whatever_words_are_as_long_as(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A cut waits for a word's end, and the other half may come from a longer text."""
    found = ["sea " * 5 + "z" * 90 for _ in range(20)] + ["moss " * 60] * 20
    corpus = corpus_of(found, tokenizer, tmp_path)
    every = np.arange(len(corpus))
    rows = PairedRows(corpus, every, tokenizer, Masking(), room=64, seed=0, static=False, wrong="next")
    assert max(len(rows[i]["input_ids"]) for i in range(len(rows))) == 64


def test_held_out_texts_without_words_are_told(fresh_bundle: Bundle, tmp_path: Path) -> None:
    options = PretrainingOptions(epochs=1, max_length=32, validation=0.5, seed=1)
    with pytest.raises(DataError, match="the held-out texts have no word that could be hidden"):
        pretrain(fresh_bundle, ["吖 " * i for i in range(1, 9)], into=tmp_path / "b", options=options, progress=False)


def test_held_out_texts_stand_nowhere_else(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A text that stands twice is on one side, with all its pieces."""
    corpus = corpus_of([*texts(20), *texts(20), " ".join(texts(8))] * 2, tokenizer, tmp_path)
    for seed in range(5):
        train, held_out = _split(corpus, PretrainingOptions(validation=0.3, seed=seed))
        assert sorted([*train, *held_out]) == list(range(len(corpus)))
        sides = [{corpus.piece(i)[0].tobytes() for i in numbers} for numbers in (train, held_out)]
        assert all(sides)
        assert not sides[0] & sides[1]
    with pytest.raises(DataError, match="the corpus has one; give two different ones"):
        _split(corpus_of(["red rose"] * 9, tokenizer, tmp_path), PretrainingOptions())


def test_the_order_of_sentences_is_learned(fresh_bundle: Bundle, tmp_path: Path) -> None:
    """Red words come before blue ones."""
    rng = random.Random(0)
    red, blue = (WORDS[colour].split() for colour in ("red", "blue"))
    found = [" ".join(rng.choices(red, k=5) + rng.choices(blue, k=5)) for _ in range(200)]
    options = PretrainingOptions(epochs=4, learning_rate=3e-3, max_length=64, sentences="order", patience=8)
    made = pretrain(fresh_bundle, found, into=tmp_path / "b", options=options, progress=False)
    assert made.card.history[-1].numbers["sentences_right"] > 0.9


def test_one_text_has_no_other(fresh_bundle: Bundle, tmp_path: Path) -> None:
    options = PretrainingOptions(epochs=1, max_length=64, sentences="next", validation=0.5)
    with pytest.raises(DataError, match="parts of other texts are wanted, and there is one text"):
        pretrain(fresh_bundle, ["red rose sea", "blue sky ice"], into=tmp_path / "b", options=options, progress=False)
