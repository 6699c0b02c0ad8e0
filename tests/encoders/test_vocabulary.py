from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tests.conftest import small_bert

import louver
from louver.bundle import Bundle
from louver.encoders import add_words, extend, read_bundle
from louver.encoders.create import create
from louver.encoders.words import Words
from louver.errors import DataError, OptionError
from louver.tasks import Columns, make_splits, read_examples
from louver.text import Tokenizer
from louver.training import AdapterOptions, PretrainingOptions, TrainingOptions, finetune, pretrain

TEXTS = ["the quorbix met the flandrel"] * 6 + ["a quorbix is a quorbix"] * 3 + ["rarewordonce", "", "the plain sea"]


def vector(bundle: Bundle, number: int) -> np.ndarray:
    table = read_bundle(bundle).encoder.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    found: np.ndarray = table.weight[number].detach().numpy()
    return found


def ids(bundle: Bundle, text: str) -> list[int]:
    return [int(i) for i in Tokenizer.open(bundle.path).encode([text])[0]]


def test_words_that_save_most_become_tokens(long_bundle: Bundle, tmp_path: Path) -> None:
    made = add_words(long_bundle, TEXTS, into=tmp_path / "b", words=2)
    numbers = made.card.history[-1].numbers
    assert numbers["first"] == ["quorbix", "flandrel"]  # 12 times and 6 times; the third occurs once
    assert numbers["tokens_a_text"]["after"] < numbers["tokens_a_text"]["before"]
    assert ids(made, "quorbix flandrel") == [30522, 30523]
    pieces = ids(long_bundle, "quorbix")
    expected = np.mean([vector(long_bundle, piece) for piece in pieces], axis=0)
    assert np.abs(vector(made, 30522) - expected).max() < 1e-6
    assert read_bundle(made).encoder.config.vocab_size == 30524


def test_other_texts_stay_as_they_were(long_bundle: Bundle, tmp_path: Path) -> None:
    made = add_words(long_bundle, TEXTS, into=tmp_path / "b")
    texts = ["the sea and the sky", "leaf " * 90]
    with louver.Predictor(long_bundle) as before, louver.Predictor(made) as after:
        assert np.array_equal(before.logits(texts), after.logits(texts))
        assert after.predict(["the quorbix"])[0].tokens_read == 2


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_masked_word_head_grows_too(family: str, tmp_path: Path) -> None:
    """And goes on being the one that was trained; a new word is guessed as its pieces together were."""
    texts = [f"the sea {word} was blue and the rose red" for word in ("quorbix", "mirth", "sand")] * 20
    size: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 60, "max_length": 64}
    bundle = extend(create(texts, into=tmp_path / "n", family=family, **size), into=tmp_path / "b", max_length=64)
    options = PretrainingOptions(epochs=1, batch_size=8, max_length=64)
    trained = pretrain(bundle, texts, into=tmp_path / "m", options=options, progress=False)
    said: list[str] = []
    grown = add_words(trained, ["quorbix"] * 9, into=tmp_path / "w", least=2)
    before, after = (Words(one).model for one in (trained, grown))
    old, new = (one.get_output_embeddings().bias.detach() for one in (before, after))
    assert torch.equal(new[: len(old)], old)
    pieces = Tokenizer.open(trained.path).encode(["quorbix"])[0]
    assert new[-1] == pytest.approx(float(old[pieces].mean()))
    assert Words(grown).fill(["the sea [MASK] was blue"], top=3)[0][0][0].word
    pretrain(grown, texts, into=tmp_path / "again", options=options, progress=False, say=said.append)
    assert not [line for line in said if "new one" in line]


def test_a_soft_prompt_is_not_written_over(tmp_path: Path, long_bundle: Bundle, tuned: Bundle, colours: Path) -> None:
    data = make_splits(read_examples(colours, Columns()))
    prompted = finetune(
        long_bundle,
        data,
        into=tmp_path / "p",
        options=TrainingOptions(epochs=1, max_length=64),
        adapter=AdapterOptions(kind="prompt"),
        progress=False,
    )
    with pytest.raises(OptionError, match="has learned a soft prompt; add words to the bundle before that"):
        add_words(prompted, ["quorbix"] * 9, into=tmp_path / "b")
    with pytest.raises(OptionError, match="has learned the task 'classify'"):
        add_words(tuned, ["quorbix"] * 9, into=tmp_path / "b")


def test_chinese_words_by_a_segmenter(me5_small: Path, tmp_path: Path) -> None:
    """A unigram tokenizer takes them where they stand, and writes all else as before."""
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    small_bert(tmp_path / "m", me5_small, vocab_size=250037, max_position_embeddings=512, pad_token_id=1, **small)
    bundle = extend(tmp_path / "m", into=tmp_path / "b", max_length=512, pattern="full")
    text = "我们用𠮷𠮷做饭"  # one word in two pieces, one of characters that it does not know, two that are tokens
    made = add_words(bundle, [text] * 5, into=tmp_path / "c", segment=lambda _: ["我们", "用", "𠮷𠮷", "做饭"])
    assert sorted(made.card.history[-1].numbers["first"]) == ["做饭", "𠮷𠮷"]
    before, after = ids(bundle, text), ids(made, text)
    assert {250002, 250003} <= set(after)  # rows of the table that no piece had
    assert len(after) < len(before)
    assert 3 in before
    assert 3 not in after  # <unk>
    assert ids(bundle, "我们做") == ids(made, "我们做")
    spaced = add_words(bundle, ["the quorbix sings"] * 5, into=tmp_path / "d")  # a word with the space before it
    assert spaced.card.history[-1].numbers["first"][0] == "▁quorbix"
    assert len(ids(spaced, "the quorbix")) == 2


def test_byte_pairs_take_added_words(tmp_path: Path) -> None:
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(["the sea is the sea"], trainer)
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", mask_token="<mask>", model_max_length=64
    ).save_pretrained(tmp_path / "m")
    config = transformers.RobertaConfig(
        vocab_size=320,  # rows to spare, as ModernBERT has them
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=80,
        pad_token_id=1,
    )
    transformers.RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "m")
    bundle = extend(tmp_path / "m", into=tmp_path / "b", max_length=78, pattern="full")
    made = add_words(bundle, ["the quorbix is the sea"] * 5, into=tmp_path / "c")
    size = Tokenizer.open(bundle.path).core.get_vocab_size()
    assert size in ids(made, "the quorbix is")
    assert ids(made, "the sea") == ids(bundle, "the sea")
    assert read_bundle(made).encoder.config.vocab_size == 320


def test_what_cannot_be_added(long_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="words and least must be positive, got 0 and 5"):
        add_words(long_bundle, TEXTS, into=tmp_path / "b", words=0)
    with pytest.raises(DataError, match="no word of the texts occurs 5 times and is more than one token"):
        add_words(long_bundle, ["the sea"] * 9, into=tmp_path / "b")
    with pytest.raises(DataError, match="none of the texts can be read; give at least one"):
        add_words(long_bundle, ["", None], into=tmp_path / "b")
