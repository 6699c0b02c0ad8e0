"""`extend`: from a checkpoint that reads 512 tokens to a bundle that reads thousands, short answers unchanged."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from louver.bundle import CARD, Bundle, Card, Golden, Record, check_target, write_card, writing
from louver.encoders import positions as positioning
from louver.encoders.load import license_of, load_plain, quiet
from louver.encoders.plug import base_of, plug
from louver.encoders.pooling import Pooling, Reader
from louver.encoders.sentence import write_sentence_files
from louver.errors import ModelError, OptionError, unknown
from louver.patterns import ByLength, Full, Pattern, by_length, parse
from louver.text import Text, Tokenizer, Truncation, inputs
from louver.text.hygiene import CLEANINGS
from louver.text.tokenizer import CLEANING, write_setting
from louver.versions import versions

DEFAULT_PATTERN = "window(128) | global(1)"
TOLERANCE = 1e-5
_GOLDEN_NUMBERS = 1024
"""Of a text with an output for every token, that are kept."""
GOLDEN_TEXTS = (
    "A louver is a set of slats that lets through only the light you want.",
    "Short.",
    "The same text must give the same answer tomorrow, on another machine, and in any batch. " * 12,
)


def extend(
    name: str | Path,
    *,
    into: str | Path,
    max_length: int = 4096,
    pattern: Pattern | str = DEFAULT_PATTERN,
    short: Literal["unchanged", "same"] = "unchanged",
    pooling: Pooling | None = None,
    prompt: str = "",
    cleaning: str = "none",
    positions: str = "auto",
    override: bool = False,
    trust_remote_code: bool = False,
    replace: bool = False,
) -> Bundle:
    """Make a checkpoint read long texts, and check that its answers to short ones did not change.

    Args:
        name: a transformers directory or a hub name; a checkpoint with a classification head keeps it. A bundle that
            was pretrained at its checkpoint's own length can be extended too.
        into: directory of the new bundle.
        max_length: tokens to read, specials included.
        pattern: who may attend to whom in texts beyond the checkpoint's own length.
        short: "unchanged" keeps full attention for texts of the checkpoint's own length; "same" uses the pattern there
            too, which changes their answers.
        pooling: how token states become one vector; None takes the checkpoint's own head, or the mean. "cls" or "mean"
            leaves a head of the checkpoint behind.
        prompt: put before every text, as in ``query: ``.
        cleaning: "light" makes full-width forms plain and control characters spaces before a text is read, here and in
            everything that is made of the bundle; "none" reads texts as they are.
        positions: how they reach farther, one of `louver.encoders.positions.WAYS`; all but "auto" and "tile" change the
            answers to short texts, and want `short="same"`.
        override: let the pattern replace a model's own local layers (ModernBERT) instead of meeting them.
        trust_remote_code: run code from the checkpoint; off unless you have read it.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the largest difference seen on short texts.

    Raises:
        ModelError: if the architecture is not supported, short texts would change, or `name` is an extended bundle.
        OptionError: if `max_length` is less than the checkpoint reads already, or it has no head to keep.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    if cleaning not in CLEANINGS:
        raise OptionError(unknown("cleaning", cleaning, CLEANINGS))
    chosen = parse(pattern)
    earlier = _earlier(name)
    model, tokenizer = load_plain(name, trust_remote_code=trust_remote_code)
    headed = "ForSequenceClassification" in type(model).__name__
    if pooling == "own" and not headed:
        raise OptionError(f"{name} has no classification head of its own; give pooling cls or mean, or leave it out")
    original = min(positioning.length(model.config), max(int(tokenizer.model_max_length), 1))
    if max_length < original:
        raise OptionError(f"{name} reads {original} tokens already, got max_length={max_length}; give a larger one")
    whole = by_length({original: Full(), math.inf: chosen}) if short == "unchanged" else chosen
    before = load_plain(name, trust_remote_code=trust_remote_code)[0]
    positioning.extend(model, max_length, positions)
    plug(model, whole, override=override)
    numbers = {"short_text_max_difference": _difference(before, model, original, max_length)}
    small = all(value <= TOLERANCE for value in numbers["short_text_max_difference"].values())  # a NaN is not
    if short == "unchanged" and not small:
        raise ModelError(
            f"answers to short texts would change by {numbers['short_text_max_difference']}, more than {TOLERANCE}; "
            'report this model to louver, or accept it with short="same"'
        )
    tokenizer.model_max_length = max_length
    own = headed and pooling in (None, "own")
    kind = _kind(model) if own else None
    labels = [model.config.id2label[i] for i in range(model.config.num_labels)] if kind in ("single", "multi") else []
    card = Card(
        task="classify" if own else "embed",
        kind=kind,
        labels=labels,
        thresholds=[0.5] * len(labels) if kind == "multi" else [],
        pattern=str(whole),
        max_length=max_length,
        original_length=original,
        pooling=pooling or ("own" if own else "mean"),
        prompt=prompt or (earlier.card.prompt if earlier else ""),
        license=earlier.card.license if earlier else license_of(name),
        origin=earlier.card.origin if earlier else str(name) if not Path(name).exists() else Path(name).name,
        history=[
            *(earlier.card.history if earlier else []),
            Record(
                step="extend",
                settings={
                    "max_length": max_length,
                    "pattern": str(chosen),
                    "short": short,
                    "pooling": pooling,
                    "positions": positions,
                    "cleaning": cleaning,
                },
                parents=[earlier.digest] if earlier else [],
                numbers=numbers,
                seconds=time.perf_counter() - began,
                versions=versions(),
            ),
        ],
    )
    with writing(into, replace=replace) as draft:
        with quiet():
            # a masked-word head stays beside the encoder, for louver pretrain
            (model if own or "ForMaskedLM" in type(model).__name__ else base_of(model)).save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        if cleaning != "none":
            write_setting(draft, CLEANING, cleaning)
        if card.task == "embed":
            write_sentence_files(draft, card, model.config.hidden_size)
        reader = Reader(model if own else base_of(model), card.pooling)
        write_card(draft, card.model_copy(update={"golden": golden(reader, Tokenizer.open(draft), card)}))
    return Bundle.open(into, verify=False)


def _earlier(name: str | Path) -> Bundle | None:
    """Return the bundle that is to be extended, if it is one and was not extended yet.

    Raises:
        ModelError: if it reads more than its checkpoint did, or has a task.
    """
    if not (Path(name) / CARD).is_file():
        return None
    found = Bundle.open(name)
    pattern = parse(found.card.pattern)
    branches = [branch for _, branch in pattern.branches] if isinstance(pattern, ByLength) else [pattern]
    plain = found.card.max_length == found.card.original_length and all(isinstance(one, Full) for one in branches)
    if not plain or found.card.task != "embed" or found.card.onnx:
        raise ModelError(
            f"{name} is a louver bundle that was extended, exported or taught a task; extend the checkpoint that it "
            "came from, or a bundle that was pretrained at its own length"
        )
    return found


def _kind(model: PreTrainedModel) -> Literal["single", "multi", "regression"]:
    """Read what a classification head gives, as transformers does: a single output without a type is a number."""
    if model.config.problem_type == "multi_label_classification":
        return "multi"
    if model.config.problem_type == "regression" or (not model.config.problem_type and model.config.num_labels == 1):
        return "regression"
    return "single"


def golden(reader: Reader, tokenizer: Tokenizer, card: Card) -> Golden:
    """Run the golden texts one by one, so that a later check can replay them; one is beyond the original length."""
    reader.eval()
    device = next(reader.parameters()).device
    plain = list(GOLDEN_TEXTS)
    if card.max_length > card.original_length:
        each = len(tokenizer.encode(plain[-1:])[0])
        plain.append(plain[-1] * (card.original_length // each + 1))
    texts: list[Text] = [(plain[0], text) for text in plain] if card.inputs == "pair" else list(plain)
    fitted = inputs(tokenizer, texts, max_length=card.max_length, truncation=Truncation.HEAD, prompt=card.prompt)
    outputs = []
    for one in fitted:
        row = torch.from_numpy(one.pieces[0])[None].to(device)
        with torch.inference_mode():
            found = reader(row, torch.ones_like(row))[0].reshape(-1)[:_GOLDEN_NUMBERS]
            outputs.append([round(x, 6) for x in found.tolist()])
    return Golden(texts=texts, outputs=outputs)


@torch.inference_mode()
def _difference(before: PreTrainedModel, after: PreTrainedModel, original: int, longest: int) -> dict[str, float]:
    """Compare token states of short texts, alone and beside a longer text: max |Δ| / (1 + max |state|)."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = before.config.vocab_size
    lengths = sorted({1, min(17, original), min(128, original), original - 1, original} - {0})
    beside = min(longest, original + 200)
    alone, batched = 0.0, 0.0
    for length in lengths:
        ids = torch.randint(5, vocabulary, (1, length), generator=generator)
        expected = base_of(before)(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        scale = 1 + float(expected.abs().max())
        found = base_of(after)(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        alone = float(np.maximum(alone, float((found - expected).abs().max()) / scale))  # keeps a NaN
        if beside > length:
            both = torch.full((2, beside), int(before.config.pad_token_id or 0))
            both[0] = torch.randint(5, vocabulary, (beside,), generator=generator)
            both[1, :length] = ids[0]
            mask = torch.ones_like(both)
            mask[1, length:] = 0
            found = base_of(after)(input_ids=both, attention_mask=mask).last_hidden_state[1:, :length]
            batched = float(np.maximum(batched, float((found - expected).abs().max()) / scale))
    return {"alone": alone, "beside_a_longer_text": batched}
