from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import louver
from louver.encoders.create import _pieces, _words, create
from louver.errors import BundleError, DataError, OptionError
from louver.text import Tokenizer
from louver.training import PretrainingOptions, pretrain


@pytest.fixture(scope="module")
def texts(composite: Path) -> list[str]:
    return [json.loads(line)["text"][:2000] for line in composite.read_text("utf8").splitlines()[:30]]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_from_texts_to_a_pretrained_bundle(family: str, texts: list[str], tmp_path: Path) -> None:
    size = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 600, "max_length": 64}
    made = create([*texts, "", None], into=tmp_path / "new", family=family, **size)  # type: ignore[arg-type]
    tokenizer = Tokenizer.open(made)
    assert tokenizer.core.get_vocab_size() == 600
    (ids,) = tokenizer.encode(["The economy grew."])
    assert tokenizer.core.decode(ids.tolist()) == "the economy grew."
    assert tokenizer.vocabulary().mask_id == tokenizer.core.token_to_id("[MASK]")
    bundle = louver.extend(made, into=tmp_path / "bundle", max_length=128, pattern="window(8) | global(1)")
    options = PretrainingOptions(epochs=2, learning_rate=5e-3, batch_size=4, max_length=64, precision="float32")
    trained = pretrain(bundle, texts, into=tmp_path / "trained", options=options, progress=False)
    numbers = trained.card.history[-1].numbers
    assert numbers["validation"]["loss"] < numbers["before"]["loss"]


def test_the_same_texts_make_the_same_checkpoint(texts: list[str], tmp_path: Path) -> None:
    first, again = (create(texts, into=tmp_path / name, layers=1, width=16, heads=2, vocabulary=300) for name in "ab")
    for name in ("tokenizer.json", "model.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_ties_do_not_depend_on_a_hash(texts: list[str], tiny: Path) -> None:
    """Fifteen trainings gave three vocabularies while the trainer numbered characters itself."""
    words = _words(texts, core := Tokenizer.open(tiny).core)
    assert len({tuple(_pieces(words, core, 1000)) for _ in range(15)}) == 1


def test_more_characters_than_room(tmp_path: Path) -> None:
    """The most frequent ones are kept, and the vocabulary is as small as was asked."""
    many = "".join(chr(0x4E00 + i) for i in range(300))
    made = Tokenizer.open(create([many, "ab ba ab ba"], into=tmp_path / "x", layers=1, width=8, heads=1, vocabulary=40))
    assert made.core.get_vocab_size() <= 40
    assert {"a", "b", "##a", "##b"} <= set(made.core.get_vocab())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "unknown family 'gpt'"),
        ({"width": 30}, "a width that is a multiple of its heads, .* got layers=4, width=30, heads=4"),
        ({"vocabulary": 5}, "vocabulary=5"),
    ],
)
def test_what_cannot_be_created(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        create(["a text"], into=tmp_path / "x", **options)
    with pytest.raises(DataError, match="no text can be read; a tokenizer is made of texts"):
        create(["", None], into=tmp_path / "y")
    (tmp_path / "z").mkdir()
    with pytest.raises(BundleError):
        create(["a text"], into=tmp_path / "z")
