"""The one file that knows Hugging Face families.

louver's attention is registered with transformers' AttentionInterface and its padding with AttentionMaskInterface under
one name; without the second, masks (padding included) would arrive as None. Everything family-specific stands in
`FAMILIES`: extend, distil and prune read it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from louver.attention import Documents, Padding, attend, from_additive
from louver.errors import ModelError, OptionError, PatternError
from louver.patterns import ByLength, Every, Kept, Pattern, Window, holds, parse

NAME = "louver"

_LAYERS = 1000
"""More than any encoder has: layers of one draw of edges never share a seed with those of another."""


@dataclass(frozen=True)
class Family:
    """Where a family keeps what louver changes.

    Attributes:
        layers: path from the base model to the list of layers.
        embeddings: path to the module with the position table, or None for rotary positions.
        padded_positions: positions count from pad_token_id + 1, and the table has as many rows more (RoBERTa).
        shared_layers: one module serves several layers, so that layers are counted by call (ALBERT).
    """

    layers: str
    embeddings: str | None = "embeddings"
    padded_positions: bool = False
    shared_layers: bool = False


FAMILIES: dict[str, Family] = {
    "albert": Family("encoder.albert_layer_groups", shared_layers=True),
    "bert": Family("encoder.layer"),
    "camembert": Family("encoder.layer", padded_positions=True),
    "distilbert": Family("transformer.layer"),
    "electra": Family("encoder.layer"),
    "modernbert": Family("layers", embeddings=None),
    "roberta": Family("encoder.layer", padded_positions=True),
    "xlm-roberta": Family("encoder.layer", padded_positions=True),
}


def family_of(config: Any) -> Family:
    """Return the family of a transformers config.

    Raises:
        ModelError: naming the architecture and the supported ones.
    """
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise ModelError(
            f"louver cannot put its attention under {kind!r}; supported are: {', '.join(sorted(FAMILIES))}"
        )
    if getattr(config, "is_decoder", False):
        raise ModelError(f"this {kind} is configured as a decoder; louver works under encoders, set is_decoder=False")
    return FAMILIES[kind]


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder inside a model with a head, or the model itself."""
    return model.base_model


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the list of an encoder's layers; of ALBERT, the list of its shared groups."""
    found = base_of(model).get_submodule(family_of(model.config).layers)
    assert isinstance(found, nn.ModuleList)
    return found


class _CallCounter:
    """Counts the layers of a model that runs one module several times; begins anew with every forward pass."""

    def __init__(self) -> None:
        self.calls = 0

    def restart(self, *_: Any) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls - 1


def plug(model: PreTrainedModel, pattern: Pattern | str, *, override: bool = False) -> PreTrainedModel:
    """Put a pattern under a transformers model, in place; the pattern stands in ``model.config.louver_pattern``.

    Args:
        model: an encoder of a supported family, with or without a head.
        pattern: who may attend to whom; met with the model's own local layers (ModernBERT).
        override: let the pattern replace the model's own local layers instead.

    Raises:
        ModelError: if the architecture is not supported.
    """
    family = family_of(model.config)
    register()
    model.config.louver_pattern = str(parse(pattern))
    model.config.louver_override = override
    if family.shared_layers:
        counter = _CallCounter()
        base_of(model).register_forward_pre_hook(counter.restart)
        for module in layers_of(model).modules():
            module.louver_layer = counter  # type: ignore[assignment]
    else:
        for index, layer in enumerate(layers_of(model)):
            for module in layer.modules():
                module.louver_layer = index  # type: ignore[assignment]
    model.set_attn_implementation(NAME)
    return model


def layer_patterns(model: PreTrainedModel) -> list[Pattern]:
    """Return the plain pattern of every layer of a plugged model at one branch, the model's own windows met.

    Raises:
        PatternError: if the pattern depends on the text's length.
    """
    config = base_of(model).config
    types = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    found = []
    for layer, kind in enumerate(types):
        local = kind == "sliding_attention" and not config.louver_override
        found.append(_pattern_of_layer(config.louver_pattern, layer, config.sliding_window if local else None))
    return found


def register() -> None:
    """Make ``attn_implementation="louver"`` known to transformers; harmless when repeated."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _padding)


def _padding(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    config: Any = None,
    use_vmap: bool = False,
    **_: Any,
) -> Padding | None:
    """Keep the padding as it came: patterns say the rest. Called once a forward pass, and once more a local mask."""
    family_of(config)
    if q_length != kv_length or use_vmap:
        raise ModelError("louver's attention reads whole texts: caches and custom mask functions are not supported")
    return None if attention_mask is None else Padding.read(attention_mask, batch_size, kv_length)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Padding | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    documents: Documents | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend along the pattern that stands in the module's config; `documents` as the model's caller gave them."""
    config: Any = module.config
    written = getattr(config, "louver_pattern", None)
    if written is None:
        raise ModelError("no louver_pattern in the model's config; load the model with louver.load")
    # transformers hands out the window plus one, as flash-attention counts it
    own = sliding_window - 1 if sliding_window and not config.louver_override else None
    layer = _layer(module, written)
    pattern = _pattern_of_layer(written, layer, own)
    edges = getattr(module, "louver_edges", None)
    if edges is not None and module.training:
        keep, seed = edges
        pattern = pattern & Kept(keep, seed * _LAYERS + layer)
    padding, mask = _split_mask(attention_mask)
    found = attend(
        query,
        key,
        value,
        pattern,
        padding=padding,
        mask=mask,
        documents=documents,
        scale=scaling,
        dropout=dropout,
        training=module.training,
    )
    return found.transpose(1, 2), None


def _layer(module: nn.Module, written: str) -> int:
    layer: int | Callable[[], int] | None = getattr(module, "louver_layer", getattr(module, "layer_idx", None))
    if layer is None:  # a model that transformers built by itself from config.json
        if holds(parse(written), Every):
            raise ModelError(f"{written} needs to know its layer; load the model with louver.load")
        return 0
    return layer() if callable(layer) else layer


@lru_cache(maxsize=1024)
def _pattern_of_layer(written: str, layer: int, window: int | None) -> Pattern:
    pattern = parse(written).resolve(layer)
    return pattern if window is None else pattern & Window(window)


def _split_mask(attention_mask: Padding | Tensor | None) -> tuple[Padding | None, Tensor | None]:
    if attention_mask is None or isinstance(attention_mask, Padding):
        return attention_mask, None
    if attention_mask.ndim != 4:
        raise OptionError(f"attention_mask must have 2 or 4 dimensions, got {attention_mask.ndim}")
    return None, attention_mask if attention_mask.dtype is torch.bool else from_additive(attention_mask)


def drop_edges(model: PreTrainedModel, keep: float | None, seed: int = 0) -> None:
    """Let each layer see a random share of its pairs while training, until the next call (Rong et al. 2020, DropEdge).

    Every token still sees itself, and evaluation sees all pairs. Recomputation in the backward pass sees the same ones.

    Args:
        model: a plugged encoder.
        keep: share of the allowed pairs that is kept; None for all of them.
        seed: of the draw; each layer has its own.
    """
    for layer in layers_of(model):
        for module in layer.modules():
            module.louver_edges = None if keep is None else (keep, seed)  # type: ignore[assignment]


def without_attention_dropout(model: PreTrainedModel) -> None:
    """Set dropout on attention weights to 0, in place: fused kernels cannot do it without the full weights.

    Dropout on states stays. ModernBERT (Warner et al. 2024, appendix A) trains without it too.
    """
    for module in layers_of(model).modules():
        if not hasattr(module, "scaling") and type(module).__name__ != "ModernBertAttention":
            continue
        for name in ("dropout", "attention_dropout"):
            found = getattr(module, name, None)
            if isinstance(found, nn.Dropout):
                found.p = 0.0
            elif isinstance(found, float):
                setattr(module, name, 0.0)
    for name in ("attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.0)


def _of_layers(pattern: Pattern, chosen: list[int]) -> Pattern:
    """Write the patterns of some layers as one pattern of a model that has these layers alone.

    Raises:
        PatternError: if neither one pattern nor an ``every`` says it.
    """
    if isinstance(pattern, ByLength):
        return pattern.with_parts(tuple(_of_layers(part, chosen) for part in pattern.parts()))
    patterns = [pattern.resolve(layer) for layer in chosen]
    first, others = patterns[0], [p for p in patterns if p != patterns[0]]
    if not others:
        return first
    for n in range(2, len(patterns) + 1):
        found = Every(n, first, others[0])
        if all(found.resolve(layer) == pattern for layer, pattern in enumerate(patterns)):
            return found
    raise PatternError(
        f"the chosen layers attend by {', '.join(map(str, patterns))}, which no every(n, …) says; choose other layers"
    )


def keep_layers(model: PreTrainedModel, chosen: list[int]) -> None:
    """Cut an encoder down to some of its layers, in place.

    Args:
        model: an encoder of a supported family.
        chosen: indices of the layers to keep, ascending.

    Raises:
        OptionError: if an index is out of range, or the family shares one module between layers.
        PatternError: if the chosen layers' patterns follow no schedule.
    """
    total = int(model.config.num_hidden_layers)
    if not chosen or sorted(set(chosen)) != list(chosen) or chosen[0] < 0 or chosen[-1] >= total:
        raise OptionError(f"layers must rise within 0…{total - 1}, got {chosen}")
    if family_of(model.config).shared_layers:
        raise OptionError(f"{model.config.model_type} shares its layers; it has none to choose from")
    written = getattr(model.config, "louver_pattern", None)
    kept = None if written is None else str(_of_layers(parse(written), chosen))
    base = base_of(model)
    path, _, name = family_of(model.config).layers.rpartition(".")
    layers = nn.ModuleList(layers_of(model)[index] for index in chosen)
    setattr(base.get_submodule(path), name, layers)
    for config in {id(c): c for c in (model.config, base.config)}.values():
        if getattr(config, "layer_types", None):  # before the count, which transformers holds against it
            config.layer_types = [config.layer_types[index] for index in chosen]
        config.num_hidden_layers = len(chosen)
        if kept is not None:
            config.louver_pattern = kept
    for index, layer in enumerate(layers):
        for module in layer.modules():
            for label in ("layer_idx", "louver_layer"):
                if hasattr(module, label):
                    setattr(module, label, index)
