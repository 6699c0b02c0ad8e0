"""`create`: a new encoder and a new tokenizer, made of your own texts, for pretraining from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from louver.bundle import check_target
from louver.encoders.load import quiet
from louver.errors import DataError, OptionError, TextError, unknown
from louver.text import check

FAMILIES = ("bert", "modernbert")
_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def create(
    texts: Iterable[object],
    *,
    into: str | Path,
    family: str = "bert",
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    vocabulary: int = 8192,
    max_length: int = 512,
    lower: bool = True,
    seed: int = 0,
) -> Path:
    """Write a checkpoint with random weights and a WordPiece tokenizer that was trained on texts.

    Args:
        texts: read once; what cannot be read is left out.
        into: directory of the new checkpoint, which `extend` makes a bundle of.
        family: "bert" or "modernbert".
        layers: of the encoder.
        width: numbers a token; the feed-forward layers have four times as many (BERT) or two (ModernBERT).
        heads: attention heads.
        vocabulary: ids at most; fewer if the texts do not give as many pieces.
        max_length: tokens to read, specials included.
        lower: make texts lower case and drop accents.
        seed: of the weights.

    Returns:
        The directory.

    Raises:
        OptionError: if the family is unknown, or a number is out of range.
        DataError: if no text can be read.
    """
    check_target(into, replace=False)
    if family not in FAMILIES:
        raise OptionError(unknown("family", family, FAMILIES))
    if min(layers, width, heads) < 1 or width % heads or vocabulary <= len(_SPECIALS) or max_length < 8:
        raise OptionError(
            f"an encoder wants layers, a width that is a multiple of its heads, a vocabulary and 8 tokens or more, got "
            f"layers={layers}, width={width}, heads={heads}, vocabulary={vocabulary}, max_length={max_length}"
        )
    core = _tokenizer(texts, vocabulary, lower)
    ids = {f"{name}_token_id": core.token_to_id(token) for name, token in _SPECIALS.items() if name != "unk"}
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=core.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=width * (4 if family == "bert" else 2),
        max_position_embeddings=max_length,
        bos_token_id=ids["cls_token_id"],
        eos_token_id=ids["sep_token_id"],
        **ids,
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    directory = Path(into)
    with quiet():
        model.save_pretrained(directory)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=core,
            model_max_length=max_length,
            **{f"{name}_token": token for name, token in _SPECIALS.items()},
        ).save_pretrained(directory)
    return directory


def _tokenizer(texts: Iterable[object], vocabulary: int, lower: bool) -> Core:
    """Train WordPiece (Schuster & Nakajima 2012) as BERT uses it."""
    core = Core(models.WordPiece(unk_token=_SPECIALS["unk"]))
    core.normalizer = normalizers.BertNormalizer(lowercase=lower)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    read = 0

    def readable() -> Iterator[str]:
        nonlocal read
        for text in texts:
            try:
                yield check(text)
            except TextError:
                continue
            read += 1

    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIALS.values()), show_progress=False
    )
    core.train_from_iterator(readable(), trainer)
    if not read:
        raise DataError("no text can be read; a tokenizer is made of texts")
    # the trainer numbers pieces in another order each time; WordPiece does not care, reproducible bytes do
    specials = list(_SPECIALS.values())
    pieces = [*specials, *sorted(set(core.get_vocab()) - set(specials))]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    core.model = models.WordPiece(numbered, unk_token=_SPECIALS["unk"])
    sep, cls = ((token, numbered[token]) for token in (_SPECIALS["sep"], _SPECIALS["cls"]))
    core.post_processor = processors.BertProcessing(sep, cls)
    return core
