"""Masks filled as transformers fills them; labels as words in a template, without examples and with few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from tests.conftest import colour_rows, write_jsonl

import louver
from louver.bundle import Bundle
from louver.encoders.words import Cloze, Template, Words
from louver.errors import DataError, ModelError, OptionError, TextError
from louver.export import export
from louver.measure.evaluate import evaluate
from louver.tasks import Columns, Example, Splits, make_splits, read_examples
from louver.training import PretrainingOptions, cloze, finetune, pretrain
from louver.training.options import ClozeOptions

COLOURS = {"red": ["red"], "blue": ["blue"], "green": ["green"]}


@pytest.fixture(scope="module")
def words(fresh_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Words:
    options = PretrainingOptions(epochs=2, learning_rate=3e-3, max_length=64)
    texts = [f"{row['text']} it is {row['label']}." for row in colour_rows(200)]
    return Words(
        pretrain(fresh_bundle, texts, into=tmp_path_factory.mktemp("words") / "b", options=options, progress=False)
    )


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    file = write_jsonl(tmp_path_factory.mktemp("few") / "rows.jsonl", colour_rows(150))
    return make_splits(read_examples(file, Columns()))


def test_masks_are_filled_as_transformers_fills_them(words: Words) -> None:
    text = "the [MASK] is rose and the [MASK] is sea"
    pipeline = transformers.pipeline("fill-mask", model=str(words.bundle.path), tokenizer=str(words.bundle.path))
    for ours, theirs in zip(words.fill([text], top=4)[0], pipeline(text, top_k=4), strict=True):
        assert [guess.word for guess in ours] == [one["token_str"] for one in theirs]
        assert np.abs(np.asarray([g.chance for g in ours]) - [one["score"] for one in theirs]).max() < 1e-5


def test_a_label_is_its_words_mean_logit(words: Words) -> None:
    template = Template("{text} it is [MASK].", {"warm": ["red", "brick"], "cold": ["blue"]})
    found = Cloze(words, template)
    assert found.labels == ("cold", "warm")
    logits = found.logits(["rose fire", "sea " * 300])
    filled = words._logits([words.tokenizer.wrap(words._with_masks("rose fire it is [MASK]."))])[0].detach()
    place = 1 + 4  # [CLS] rose fire it is [MASK]
    ids = [words._core.token_to_id(word) for word in ("blue", "red", "brick")]
    expected = [float(filled[place, ids[0]]), float(filled[place, ids[1:]].mean())]
    assert np.abs(logits[0] - expected).max() < 1e-4
    (row,) = found.rows(["sea " * 600])
    assert len(row) == words.bundle.card.max_length
    assert words.vocabulary.mask_id in row  # the text was cut, the template was not


def test_few_examples_teach_the_words(words: Words, few: Splits, tmp_path: Path) -> None:
    options = ClozeOptions(epochs=8, learning_rate=3e-3, patience=8)
    template = Template("{text} it is [MASK].", COLOURS)
    made = cloze(words.bundle, few, template, into=tmp_path / "b", options=options, progress=False)
    numbers = made.card.history[-1].numbers
    assert numbers["validation"]["accuracy"]["value"] > 0.9
    assert numbers["epochs"][0]["score"] == pytest.approx(numbers["no_examples"]["value"], abs=1e-4)
    again = Cloze(Words(made), template)
    logits = again.logits([example.text for example in few.validation])
    truth = [again.labels.index(str(example.label)) for example in few.validation]
    assert (logits.argmax(1) == truth).mean() == pytest.approx(numbers["validation"]["accuracy"]["value"], abs=1e-4)


def test_texts_that_cannot_be_filled(words: Words, tuned: Bundle) -> None:
    with pytest.raises(TextError, match=r"the text has no \[MASK\]; write one where a word is to be found"):
        words.fill(["no mask"])
    with pytest.raises(TextError, match=r"the text has \[SEP\] written in it; masks alone are read"):
        words.fill(["a [MASK] [SEP] b"])
    with pytest.raises(TextError, match="this model reads 512 tokens and the text has 603; shorten it, or extend"):
        words.fill(["sea " * 600 + "[MASK]"])
    with pytest.raises(OptionError, match="top must be positive, got 0"):
        words.fill(["[MASK]"], top=0)
    with pytest.raises(ModelError, match="has no masked-word head; make one with 'louver pretrain'"):
        Words(tuned)


@pytest.mark.parametrize(
    ("pattern", "said", "message"),
    [
        ("it is [MASK].", COLOURS, r"a template has \{text\} and \[MASK\] once each, got 'it is \[MASK\].'"),
        ("{text} [MASK] [MASK]", COLOURS, "once each"),
        ("{text} [MASK]", {"a": ["red"]}, "words for two labels or more"),
        (
            "{text} [MASK]",
            {"a": ["red"], "b": ["quorbix"]},
            "'quorbix' is not one token of this model; take",
        ),
        ("{text} [MASK]", {"a": ["red"], "b": []}, "label 'b' has no word; give it one"),
    ],
)
def test_templates_that_cannot_be(words: Words, pattern: str, said: dict[str, list[str]], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Cloze(words, Template(pattern, said))


def test_a_label_without_words(words: Words, few: Splits, tmp_path: Path) -> None:
    template = Template("{text} [MASK]", {"red": ["red"], "blue": ["blue"]})
    with pytest.raises(DataError, match="label 'green' has no words in the template; give it some"):
        cloze(words.bundle, few, template, into=tmp_path / "b", progress=False)


def test_chinese_words(me5_small: Path) -> None:
    """A unigram tokenizer marks a word's beginning; words of scripts without spaces have none within a text."""
    from types import SimpleNamespace
    from typing import Any

    import tokenizers

    from louver.text import Tokenizer

    core = tokenizers.Tokenizer.from_file(str(me5_small / "tokenizer.json"))
    tokenizer = Tokenizer.open(me5_small)
    model: Any = SimpleNamespace(
        _core=core, _mask="<mask>", tokenizer=tokenizer, vocabulary=tokenizer.vocabulary(), bundle=None
    )
    found = Cloze(model, Template("{text} 总之很<mask>。", {"good": ["好"], "bad": ["差"]}))
    assert found.labels == ("bad", "good")
    assert [core.id_to_token(i) for ids in found.ids for i in ids] == ["差", "好"]


def test_no_epochs_leave_the_words_as_they_are(words: Words, few: Splits, tmp_path: Path) -> None:
    template = Template("{text} it is [MASK].", COLOURS)
    made = cloze(words.bundle, few, template, into=tmp_path / "b", options=ClozeOptions(epochs=0), progress=False)
    texts = [e.text for e in few.validation]
    with louver.Predictor(made) as predictor:
        np.testing.assert_allclose(predictor.logits(texts), Cloze(words, template).logits(texts), atol=1e-4)


def test_rows_and_words_that_no_cloze_answers(words: Words, few: Splits, tmp_path: Path) -> None:
    template = Template("{text} it is [MASK].", COLOURS)
    first = few.train[0]
    for example in (Example("a", "red", pair="b"), Example("a", ("red", "blue")), Example("a", 0.5)):
        data = Splits([first, example], few.validation, few.test)
        with pytest.raises(DataError, match="a cloze answers one label of one text"):
            cloze(words.bundle, data, template, into=tmp_path / "b", progress=False)
    with pytest.raises(OptionError, match="a word stands for two labels"):
        Cloze(words, Template("{text} it is [MASK].", {"red": ["red"], "blue": ["blue", "red"]}))


def test_more_guesses_than_words(words: Words) -> None:
    with pytest.raises(OptionError, match="the tokenizer has 30522 words, got top=99999; give at most that"):
        words.fill(["the [MASK]"], top=99_999)


def test_a_cloze_is_a_classification_like_any_other(words: Words, few: Splits, tmp_path: Path) -> None:
    """Predicted, evaluated, exported; the template around every text and window, and never cut."""
    options = ClozeOptions(epochs=2, learning_rate=3e-3)
    template = Template("{text} it is [MASK].", {"red": ["red"], "blue": ["blue", "green"]})
    rows = [e for e in few.train if e.label != "green"]
    data = Splits(rows, [e for e in few.validation if e.label != "green"], [])
    made = cloze(words.bundle, data, template, into=tmp_path / "b", options=options, progress=False)
    card = made.card
    assert (card.task, card.kind, card.labels, card.pooling) == ("classify", "single", ["blue", "red"], "mask")
    model = Words(made)
    texts = [e.text for e in data.validation]
    wanted = Cloze(model, template).logits(texts)
    with louver.Predictor(made) as predictor:
        found = predictor.logits(texts)
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        (one,) = predictor.predict(["moss " * 600])
        assert one.tokens_read + one.tokens_cut == 600
        assert one.tokens_read == card.max_length - 2 - len(Cloze(model, template).around[1])
    by_hand = model.fill([f"{texts[0]} it is [MASK]."], top=30522)[0][0]
    chances = {guess.word: guess.chance for guess in by_hand}
    logs = np.log([chances["blue"], chances["green"], chances["red"]])
    assert wanted[0, 1] - wanted[0, 0] == pytest.approx(logs[2] - (logs[0] + logs[1]) / 2, abs=1e-3)
    scored = evaluate(made, data.validation).score.value
    assert made.card.history[-1].numbers["validation"]["accuracy"]["value"] == pytest.approx(scored, abs=1e-4)
    graphs = export(made, into=tmp_path / "onnx")
    with louver.Predictor(graphs) as predictor:
        np.testing.assert_allclose(predictor.logits(texts), wanted, atol=1e-4)
    says = "answers by a template; give the bundle that louver cloze was given"
    with pytest.raises(OptionError, match=says):
        finetune(made, data, into=tmp_path / "x", progress=False)
    with pytest.raises(OptionError, match=says):
        pretrain(made, texts, into=tmp_path / "x", progress=False)
