"""Small models with large random weights, and the real ones that `make data` fetched."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # a test that asks the hub is wrong

import pytest
import torch
import transformers

from louver.bundle import Bundle

ROOT = Path(__file__).parent.parent
WORDS = {"red": "rose fire blood ruby brick", "blue": "sea sky ice jeans whale", "green": "leaf frog moss lime fern"}


def _real(relative: str) -> Path:
    path = ROOT / "data" / relative
    assert path.exists(), f"{path} is missing; `make test` fetches it"
    return path


@pytest.fixture(scope="session")
def minilm_l3() -> Path:
    return _real("models/minilm-l3")


@pytest.fixture(scope="session")
def me5_small() -> Path:
    return _real("models/me5-small")


@pytest.fixture(scope="session")
def zh_ner() -> Path:
    return _real("text/zh-ner.jsonl")


@pytest.fixture(scope="session")
def composite() -> Path:
    return _real("text/bbc-composite.jsonl")


def small_bert(into: Path, tokenizer: Path, **sizes: Any) -> transformers.BertModel:
    """Write a BERT of 2 layers, 64 wide, 64 positions, with another model's tokenizer, and return it."""
    torch.manual_seed(0)
    chosen = {
        "vocab_size": 30522,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }
    model = transformers.BertModel(transformers.BertConfig(**{**chosen, **sizes}), add_pooling_layer=False)
    model.save_pretrained(into)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, into / name)
    return model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, minilm_l3: Path) -> Path:
    """A BERT of 3 layers, 32 wide, 64 positions, with MiniLM's tokenizer and large weights."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    model = small_bert(directory, minilm_l3, hidden_size=32, num_hidden_layers=3, intermediate_size=64)
    large_weights(model)
    model.save_pretrained(directory)
    return directory


def large_weights(model: torch.nn.Module, spread: float = 0.3) -> None:
    """Give attention something to decide: default initialisation makes it nearly uniform."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=spread)


def colour_rows(count: int, seed: int = 0, words: int = 12) -> list[dict[str, str]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.choice(sorted(WORDS))
        rows.append({"text": " ".join(rng.choices(WORDS[label].split(), k=words)), "label": label})
    return rows


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf8")
    return path


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts whose label is easy to learn."""
    return write_jsonl(tmp_path_factory.mktemp("colours") / "colours.jsonl", colour_rows(160))


@pytest.fixture(scope="session")
def long_bundle(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Bundle:
    from louver.encoders import extend

    into = tmp_path_factory.mktemp("long") / "bundle"
    return extend(tiny, into=into, max_length=2048, pattern="window(8) | global(1)")


@pytest.fixture(scope="session")
def fresh_bundle(tmp_path_factory: pytest.TempPathFactory, minilm_l3: Path) -> Bundle:
    """A small encoder with BERT's own initialisation: large weights mix tokens too much to be taught in seconds."""
    from louver.encoders import extend

    home = tmp_path_factory.mktemp("fresh")
    small_bert(home / "model", minilm_l3)
    return extend(home / "model", into=home / "bundle", max_length=512, pattern="window(8) | global(1)")


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, long_bundle: Bundle, colours: Path) -> Bundle:
    from louver.tasks import Columns, make_splits, read_examples
    from louver.training import TrainingOptions, finetune

    data = make_splits(read_examples(colours, Columns()))
    options = TrainingOptions(epochs=1, learning_rate=1e-3, max_length=64)
    return finetune(
        long_bundle, data, into=tmp_path_factory.mktemp("tuned") / "bundle", options=options, progress=False
    )


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, tuned: Bundle) -> Bundle:
    from louver.export import export

    return export(tuned, into=tmp_path_factory.mktemp("exported") / "bundle")


@pytest.fixture(scope="session")
def int8(tmp_path_factory: pytest.TempPathFactory, exported: Bundle) -> Bundle:
    from louver.compression import quantize

    return quantize(exported, into=tmp_path_factory.mktemp("int8") / "bundle")
