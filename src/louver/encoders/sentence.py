"""Embedding bundles in sentence-transformers: files that it loads as they are, and the long way by louver.

sentence-transformers runs no code of other packages unless it is told to trust it, so `SentenceTransformer(directory)`
gives plain dense attention. That is the same model up to the checkpoint's own length, and there the files tell it to
stop; `sentence_transformer` puts the pattern under it and reads all of a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from louver.bundle import Bundle, Card
from louver.encoders.plug import plug
from louver.errors import OptionError, need_extra
from louver.patterns import ByLength, Full, parse

_MODULES = ("Transformer", "Pooling", "Normalize")


def write_sentence_files(directory: Path, card: Card, width: int) -> None:
    """Write what sentence-transformers reads beside transformers' own files.

    Args:
        directory: of a bundle that is being written.
        card: of an embedding bundle with pooling "cls" or "mean".
        width: numbers of an embedding.
    """
    modules = []
    for number, name in enumerate(_MODULES):
        path = f"{number}_{name}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        )
    pooling = {"word_embedding_dimension": width}
    pooling |= {"pooling_mode_cls_token": card.pooling == "cls", "pooling_mode_mean_tokens": card.pooling == "mean"}
    prompts = {"prompts": {"text": card.prompt}, "default_prompt_name": "text"} if card.prompt else {}
    files: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": _dense_length(card), "do_lower_case": False},
        "1_Pooling/config.json": pooling,
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine", **prompts},
    }
    for name, contents in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(contents, indent=1), "utf8")


def _dense_length(card: Card) -> int:
    """Return the tokens up to which dense attention is what the pattern says."""
    pattern = parse(card.pattern)
    if isinstance(pattern, Full):
        return card.max_length
    if isinstance(pattern, ByLength) and isinstance(pattern.branches[0][1], Full):
        return int(min(pattern.branches[0][0], card.max_length))
    return min(card.original_length, card.max_length)


def sentence_transformer(bundle: Bundle | str | Path) -> Any:
    """Open an embedding bundle as a `SentenceTransformer` that reads all its tokens, with the pattern under it.

    Raises:
        OptionError: if the bundle gives no embeddings, or has no transformers files.
        MissingExtraError: if sentence-transformers is not installed.
    """
    need_extra("train", "sentence_transformers")
    from sentence_transformers import SentenceTransformer

    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    card = source.card
    if card.task != "embed" or not (source.path / "modules.json").is_file():
        raise OptionError(f"{source.path} is no bundle of embeddings with transformers files; give one of them")
    opened = SentenceTransformer(str(source.path), device="cpu", local_files_only=True)
    encoder = opened[0].model
    plug(encoder, card.pattern, override=getattr(encoder.config, "louver_override", False))
    opened.max_seq_length = card.max_length
    return opened
