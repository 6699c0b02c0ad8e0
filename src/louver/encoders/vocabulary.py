"""`add_words`: words of your texts become tokens of their own, so that a text takes fewer of them.

A new word's vector begins as the mean of the vectors of the pieces that it was written with. Texts with new words are
read differently from then on: train the encoder on hidden words afterwards (`louver pretrain`).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from transformers import PreTrainedModel

from louver.bundle import Bundle, Record, check_target, write_card, writing
from louver.encoders.extend import golden
from louver.encoders.load import quiet
from louver.encoders.plug import base_of
from louver.encoders.pooling import Reader, read_bundle
from louver.encoders.sentence import write_sentence_files
from louver.encoders.words import has_word_head, masked_model
from louver.errors import DataError, ModelError, OptionError, TextError
from louver.text import Tokenizer, check
from louver.text.tokenizer import FILE, Segment
from louver.versions import versions

_CHUNK = 1000
_COMPARED = 1000
"""Texts whose tokens are counted before and after."""


@dataclass(frozen=True)
class Word:
    """A word that could become a token.

    Attributes:
        text: as the tokenizer sees it, after its normalisation.
        count: how often it stands in the texts.
        pieces: ids that it is written with now.
        unknown: of these, the ones that stand for what the tokenizer does not know.
    """

    text: str
    count: int
    pieces: tuple[int, ...]
    unknown: int = 0

    @property
    def gain(self) -> int:
        """Tokens that it would save in the texts; one that says nothing counts as saved too."""
        return self.count * (len(self.pieces) - 1 + self.unknown)


def add_words(
    bundle: Bundle | str | Path,
    texts: Iterable[object],
    *,
    into: str | Path,
    words: int = 1000,
    least: int = 5,
    segment: Segment | None = None,
    replace: bool = False,
) -> Bundle:
    """Give the words of some texts that save most tokens a place in the vocabulary.

    Args:
        bundle: with transformers files, before it learns a task.
        texts: read once, a thousand at a time; what cannot be read is left out.
        into: directory of the new bundle.
        words: new tokens at most.
        least: times that a word must occur.
        segment: cuts a text into words, for scripts without spaces; ``jieba.lcut`` for example.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the mean tokens a text before and after, and the words.

    Raises:
        DataError: if no word would save a token.
        ModelError: if the tokenizer is of a kind that takes no new words.
        OptionError: if a number is out of range, or the bundle has learned a task or a soft prompt.
    """
    began = time.perf_counter()
    if words < 1 or least < 1:
        raise OptionError(f"words and least must be positive, got {words} and {least}")
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    tokenizer = Tokenizer.open(source.path)
    if source.card.task != "embed" or tokenizer.prompted:
        learned = "a soft prompt" if tokenizer.prompted else f"the task {source.card.task!r}"
        raise OptionError(f"{source.path} has learned {learned}; add words to the bundle before that, then train again")
    sample, counts = _count(texts, tokenizer, segment)
    found = [word for word in _candidates(counts, tokenizer, least) if word.gain > 0][:words]
    if not found:
        raise DataError(f"no word of the texts occurs {least} times and is more than one token; nothing to add")
    first = tokenizer.core.get_vocab_size()
    written = _written((source.path / FILE).read_text("utf8"), found, first)
    masked = masked_model(source) if has_word_head(source) else None
    reader = read_bundle(source) if masked is None else Reader(base_of(masked), source.card.pooling).eval()
    _grow(reader.encoder if masked is None else masked, found, first)
    card = source.card
    with writing(into, replace=replace) as draft:
        reader.save(draft)
        if masked is not None:
            with quiet():
                masked.save_pretrained(draft)  # the same encoder, with its head
        for file in source.path.glob("tokenizer*"):
            (draft / file.name).write_bytes(file.read_bytes())
        (draft / FILE).write_text(written, "utf8")
        after = Tokenizer.open(draft)
        lengths = [float(np.mean([len(ids) for ids in one.encode(sample)])) for one in (tokenizer, after)]
        numbers = {
            "tokens_a_text": {"before": round(lengths[0], 2), "after": round(lengths[1], 2)},
            "words": len(found),
            "first": [word.text for word in found[:50]],
        }
        record = Record(
            step="vocabulary",
            settings={"words": words, "least": least, "segmenter": segment is not None},
            parents=[source.digest],
            numbers=numbers,
            seconds=time.perf_counter() - began,
            versions=versions(),
        )
        card = card.model_copy(update={"history": [*card.history, record]})
        if card.task == "embed" and card.pooling in ("cls", "mean"):
            write_sentence_files(draft, card, reader.encoder.config.hidden_size)
        write_card(draft, card.model_copy(update={"golden": golden(reader, after, card)}))
    return Bundle.open(into, verify=False)


def _count(texts: Iterable[object], tokenizer: Tokenizer, segment: Segment | None) -> tuple[list[str], Counter[str]]:
    """Count words as the tokenizer sees them, and keep the first texts for comparison."""
    stream, sample, counts = iter(texts), list[str](), Counter[str]()
    while chunk := list(islice(stream, _CHUNK)):
        for text in chunk:
            try:
                readable = check(text)
            except TextError:
                continue
            sample += [readable] if len(sample) < _COMPARED else []
            counts.update(_words(readable, tokenizer.core, segment))
    if not sample:
        raise DataError("none of the texts can be read; give at least one")
    return sample, counts


def _words(text: str, core: tokenizers.Tokenizer, segment: Segment | None) -> list[str]:
    normal = core.normalizer.normalize_str(text) if core.normalizer is not None else text
    if segment is not None:
        found = [word.strip() for word in segment(normal)]
    else:
        found = [word for word, _ in core.pre_tokenizer.pre_tokenize_str(normal)]
        found = [word.lstrip("Ġ") for word in found]
    return [word for word in found if len(word) > 1 and any(c.isalpha() for c in word)]


def _candidates(counts: Counter[str], tokenizer: Tokenizer, least: int) -> list[Word]:
    """Return words of several pieces, those that save most first."""
    often = [(word, count) for word, count in counts.items() if count >= least]
    ids = tokenizer.encode([word.lstrip("▁") for word, _ in often]) if often else []
    alone = tokenizer.core.token_to_id("▁")  # a word that stands within a text does not begin with it
    ids = [
        one[1:] if len(one) and one[0] == alone and word[0] != "▁" else one
        for one, (word, _) in zip(ids, often, strict=True)
    ]
    blank = {tokenizer.core.token_to_id(name) for name in ("[UNK]", "<unk>")} - {None}
    found = [
        Word(word, count, tuple(map(int, pieces)), sum(int(i) in blank for i in pieces))
        for (word, count), pieces in zip(often, ids, strict=True)
        if len(pieces)
    ]
    return sorted(found, key=lambda word: (-word.gain, word.text))


def _written(file: str, words: list[Word], first: int) -> str:
    """Return tokenizer.json with new words at the end of its vocabulary, from the id `first` on."""
    raw: dict[str, Any] = json.loads(file)
    model = raw["model"]
    kind = model.get("type") or ("WordPiece" if "continuing_subword_prefix" in model else None)
    if kind == "WordPiece":
        model["vocab"].update({word.text: first + place for place, word in enumerate(words)})
    elif kind == "Unigram":
        scores = dict(model["vocab"])
        pieces = [piece for piece, _ in model["vocab"]]
        if len(pieces) != first:
            raise ModelError(f"the tokenizer has {first - len(pieces)} tokens behind its pieces; it takes no new words")
        for word in words:
            # likelier than its pieces together, so that it is taken, and not much, so that others stay
            own = sum(scores[pieces[i]] for i in word.pieces) + 0.1
            model["vocab"].append([word.text, own])
    elif kind == "BPE":
        for place, word in enumerate(words):
            flags = {"single_word": True, "lstrip": True, "rstrip": False, "normalized": True, "special": False}
            raw["added_tokens"].append({"id": first + place, "content": word.text, **flags})
    else:
        raise ModelError(f"a tokenizer of the kind {kind!r} takes no new words; those that do: BPE, Unigram, WordPiece")
    return json.dumps(raw, ensure_ascii=False)


@torch.no_grad()
def _grow(model: PreTrainedModel, words: list[Word], first: int) -> None:
    """Give each word the mean of its pieces' vectors, and of what a masked-word head has for them.

    Rows that pad the table are used before it grows.
    """

    def tables() -> list[torch.Tensor]:
        """Return what has a row a word: the vectors, and of a head its bias and, where it has its own, its matrix."""
        found = [
            module for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module is not None
        ]
        parts = [getattr(module, name, None) for module in found for name in ("weight", "bias")]
        return list({id(part): part for part in parts if isinstance(part, torch.Tensor)}.values())

    new = [torch.stack([part[list(word.pieces)].mean(0) for word in words]) for part in tables()]
    if first + len(words) > len(tables()[0]):
        with quiet():
            model.resize_token_embeddings(first + len(words), mean_resizing=False)
    for part, rows in zip(tables(), new, strict=True):
        part[first : first + len(words)] = rows
