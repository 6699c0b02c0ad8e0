"""Checkpoints from a directory or the hub: a transformers model with exactly one pattern under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from louver.encoders import positions
from louver.encoders.plug import family_of, plug
from louver.errors import ModelError
from louver.patterns import Pattern

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load(
    name: str | Path,
    *,
    pattern: Pattern | str | None = None,
    max_length: int | None = None,
    override: bool | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, Any]:
    """Load a model and its tokenizer, with louver's attention under the model.

    Args:
        name: a directory (a bundle too) or a name on the Hugging Face hub.
        pattern: exactly this pattern, at every length; None takes the one in the checkpoint's config, or full.
        max_length: tokens to read, specials included; the position table is tiled if it is shorter.
        override: let the pattern replace a model's own local layers (ModernBERT) instead of meeting them; None takes
            what the checkpoint's config says.
        trust_remote_code: run code from the checkpoint; off unless you have read it.

    Returns:
        The transformers model (of the class that the checkpoint names) in float32 and evaluation mode, and its
        transformers tokenizer.

    Raises:
        ModelError: if the architecture is not supported, or the weights are not safetensors.
    """
    model, tokenizer = load_plain(name, trust_remote_code=trust_remote_code)
    if max_length is not None:
        positions.extend(model, max_length)
        tokenizer.model_max_length = max_length
    chosen = pattern if pattern is not None else getattr(model.config, "louver_pattern", "full")
    kept = getattr(model.config, "louver_override", False)
    return plug(model, chosen, override=kept if override is None else override), tokenizer


def load_plain(
    name: str | Path,
    *,
    supported: bool = True,
    trust_remote_code: bool = False,
    architecture: str | None = None,
    new_head: bool = False,
) -> tuple[PreTrainedModel, Any]:
    """Load a model as transformers would, with its own attention.

    Args:
        name: a directory or a name on the hub.
        supported: refuse architectures that louver cannot work under.
        trust_remote_code: run code from the checkpoint.
        architecture: transformers class to load; None takes the checkpoint's own.
        new_head: let a head that the checkpoint lacks begin with random weights.
    """
    source = str(name)
    _refuse_pickles(Path(source))
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        if supported:
            family_of(config)
        named = architecture or next(iter(getattr(config, "architectures", None) or []), "AutoModel")
        cls = getattr(transformers, named, transformers.AutoModel)
        with quiet():
            model, info = cls.from_pretrained(
                source,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"cannot load {source!r} ({reason}); give a transformers directory or a hub name") from error
    _settle(model, sorted(info["missing_keys"]), source, new_head)
    return model.eval(), tokenizer


def license_of(name: str | Path) -> str | None:
    """Return the licence that a checkpoint's model card names, if it has a card and the card can be read."""
    directory = Path(name)
    source = directory / "README.md" if directory.is_dir() else str(name)
    if isinstance(source, Path) and not source.is_file():
        return None
    try:
        found = ModelCard.load(source).data.license
    except Exception:  # offline, no card, or a broken one: a licence is told where it is known
        return None
    return found if isinstance(found, str) else None


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' bars and load reports: what matters in them is checked here and said in one line."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def _settle(model: PreTrainedModel, missing: list[str], source: str, new_head: bool) -> None:
    """Take away a pooler that the checkpoint lacks (transformers fills it with noise); refuse anything else missing."""
    lost = [key for key in missing if "pooler" not in key]
    if new_head:
        lost = [key for key in lost if key.startswith(f"{model.base_model_prefix}.")]
    if lost:
        raise ModelError(f"{source!r} lacks the weights {', '.join(lost[:3])}; it was not saved by this architecture")
    if any("pooler" in key for key in missing):
        model.base_model.pooler = None


def _refuse_pickles(directory: Path) -> None:
    if not directory.is_dir() or any(directory.glob("*.safetensors")):
        return
    found = next((file.name for pattern in _PICKLES for file in directory.glob(pattern)), None)
    if found is not None:
        raise ModelError(
            f"{directory} has its weights as a pickle ({found}), which can run code; "
            "save it again with transformers' save_pretrained, which writes safetensors"
        )
