"""`create`: a new encoder and a new tokenizer, made of your own texts, for pretraining from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    """Train WordPiece (Schuster & Nakajima 2012) as BERT uses it; the same texts give the same pieces."""
    core = Core(models.WordPiece(unk_token=_SPECIALS["unk"]))
    core.normalizer = normalizers.BertNormalizer(lowercase=lower)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    specials = list(_SPECIALS.values())
    pieces = [*specials, *_pieces(_words(texts, core), core, vocabulary - len(specials))]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    core.model = models.WordPiece(numbered, unk_token=_SPECIALS["unk"])
    core.add_special_tokens(specials)
    sep, cls = ((token, numbered[token]) for token in (_SPECIALS["sep"], _SPECIALS["cls"]))
    core.post_processor = processors.BertProcessing(sep, cls)
    return core


def _words(texts: Iterable[object], core: Core) -> Counter[str]:
    """Count the words of all texts that can be read."""
    words: Counter[str] = Counter()
    read = 0
    for text in texts:
        try:
            normal = core.normalizer.normalize_str(check(text))
        except TextError:
            continue
        words.update(word for word, _ in core.pre_tokenizer.pre_tokenize_str(normal))
        read += 1
    if not read:
        raise DataError("no text can be read; a tokenizer is made of texts")
    return words


def _pieces(words: Counter[str], core: Core, room: int) -> list[str]:
    """Return the pieces of words, in order: characters in half of the room at most, and no word with a rarer one."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    alphabet = set(sorted(counts, key=lambda c: (-counts[c], c))[: max(1, room // 4)])
    known = {word: count for word, count in words.items() if alphabet.issuperset(word)}
    # the trainer numbers "##a", "##b", … as its hash table meets them, and breaks ties by number: given as special
    # tokens they are numbered beforehand
    inner = [f"##{c}" for c in sorted({c for word in known for c in word[1:]})]
    trainer = trainers.WordPieceTrainer(vocab_size=room, special_tokens=inner, show_progress=False)
    scratch = Core(models.WordPiece(unk_token=_SPECIALS["unk"]))
    scratch.pre_tokenizer = core.pre_tokenizer
    scratch.train_from_iterator((" ".join([word] * count) for word, count in known.items()), trainer)
    return sorted(scratch.get_vocab())
