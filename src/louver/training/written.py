"""A trained encoder becomes a bundle: files, golden texts, card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from louver.bundle import Bundle, Card, write_card, writing
from louver.encoders.extend import golden
from louver.encoders.load import quiet
from louver.encoders.pooling import Pooling, Reader, pooling_of
from louver.encoders.sentence import write_sentence_files
from louver.text import Tokenizer
from louver.training.processes import is_first, wait


def embedding_card(card: Card, pooling: Pooling | None = None) -> Card:
    """Return a card of the same model without a task, which gives embeddings.

    Args:
        card: of any bundle.
        pooling: "cls" or "mean"; the card's own if None, or the mean where it has none.

    Raises:
        OptionError: if the pooling is another one.
    """
    chosen = pooling_of(card, pooling)
    update: dict[str, object] = {
        "task": "embed",
        "kind": None,
        "inputs": "text",
        "labels": [],
        "thresholds": [],
        "pooling": chosen,
    }
    return card.model_copy(update=update)


def write_reader(
    reader: Reader,
    source: Bundle,
    card: Card,
    into: str | Path,
    *,
    replace: bool,
    also: Callable[[Path], None] = lambda _: None,
) -> Bundle:
    """Write what was trained.

    Args:
        reader: that was trained; moved to the CPU.
        source: the bundle that training began with, for its tokenizer.
        card: of the new bundle, without golden texts.
        into: directory of the new bundle.
        replace: write over an old bundle.
        also: writes more files into the directory, or other ones.
    """
    if not is_first():
        wait()
        return Bundle.open(into, verify=False)
    with writing(into, replace=replace) as draft:
        reader.cpu().eval().save(draft)
        for file in source.path.glob("tokenizer*"):
            (draft / file.name).write_bytes(file.read_bytes())
        if card.task == "embed" and card.pooling in ("cls", "mean"):
            write_sentence_files(draft, card, reader.encoder.config.hidden_size)
        with quiet():
            also(draft)
        write_card(draft, card.model_copy(update={"golden": golden(reader, Tokenizer.open(draft), card)}))
    wait()
    return Bundle.open(into, verify=False)
