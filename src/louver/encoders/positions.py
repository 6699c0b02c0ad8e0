"""Longer positions for models that learned 512.

Position tables are tiled by default: row i of the new table is row i mod n of the old one (Beltagy et al. 2020, section
5, copy the positions to keep the local structure that was learned). Rotary models need no table; under a window every
distance in use was seen in training, so by default their frequencies stay as they are. Both keep the answers to short
texts. The other ways change them: a stretched table, sines, and rotary frequencies scaled for longer distances.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import PreTrainedConfig, PreTrainedModel

from louver.attention.gathered import BLOCK
from louver.encoders.plug import base_of, family_of
from louver.errors import OptionError, unknown

WAYS: dict[str, str] = {
    "auto": "tables are tiled, rotary frequencies stay",
    "tile": "a table's rows again from the first",
    "interpolate": "a table stretched, with rows in between",
    "sinusoidal": "a table of sines and cosines",
    "ntk": "rotary frequencies of a larger base",
    "yarn": "rotary frequencies slowed where they are slow already",
}
"""Ways to reach farther, for tables and for rotary models."""

_FOR_TABLES, _FOR_ROTARY = ("auto", "tile", "interpolate", "sinusoidal"), ("auto", "ntk", "yarn")


def offset(config: PreTrainedConfig) -> int:
    """Return the rows of the position table that stand before the first token's."""
    return int(config.pad_token_id) + 1 if family_of(config).padded_positions else 0


def length(config: PreTrainedConfig) -> int:
    """Return the tokens that a model's positions reach."""
    return int(config.max_position_embeddings) - offset(config)


def extend(model: PreTrainedModel, max_length: int, how: str = "auto") -> None:
    """Let a model's positions reach at least `max_length` tokens, in place; positions that reach it stay as they are.

    Args:
        model: an encoder of a supported family, with or without a head.
        max_length: tokens, specials included.
        how: one of `WAYS`; all but "auto" and "tile" change the answers to short texts too.

    Raises:
        OptionError: if `max_length` is not positive, or `how` is unknown or not for this model's positions.
    """
    if max_length < 1:
        raise OptionError(f"max_length must be positive, got {max_length}; 4096 is a common choice")
    if how not in WAYS:
        raise OptionError(unknown("way to extend positions", how, WAYS))
    family = family_of(model.config)
    fitting = _FOR_ROTARY if family.embeddings is None else _FOR_TABLES
    if how not in fitting:
        kind = "rotary positions" if family.embeddings is None else "a position table"
        raise OptionError(f"{model.config.model_type} has {kind}, got {how!r}; choose one of: {', '.join(fitting)}")
    before, old = offset(model.config), length(model.config)
    if max_length <= old:
        return
    # sparse graphs pad to whole blocks, and the padding needs rows too
    max_length = -(-max_length // BLOCK) * BLOCK if max_length > BLOCK else max_length
    model.config.max_position_embeddings = max_length + before
    base_of(model).config.max_position_embeddings = max_length + before
    if family.embeddings is None:
        _scale_rotary(base_of(model), old, max_length, how)
        return
    embeddings = base_of(model).get_submodule(family.embeddings)
    table = embeddings.position_embeddings
    assert isinstance(table, nn.Embedding)
    weight = table.weight.data
    longer = torch.cat([weight[:before], _longer(weight[before:], max_length, how)])
    embeddings.position_embeddings = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        longer, freeze=not table.weight.requires_grad, padding_idx=table.padding_idx
    )
    total = max_length + before
    embeddings.register_buffer("position_ids", torch.arange(total, device=weight.device)[None], persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        zeros = torch.zeros(1, total, dtype=torch.long, device=weight.device)
        embeddings.register_buffer("token_type_ids", zeros, persistent=False)


def _longer(table: Tensor, rows: int, how: str) -> Tensor:
    """Return a table of so many rows made of an old one."""
    if how == "interpolate":
        stretched = interpolate(table.T[None], size=rows, mode="linear", align_corners=True)
        return stretched[0].T.contiguous()
    if how == "sinusoidal":
        return sinusoidal(rows, table.shape[1]).to(table) * table.std() * 2**0.5
    return table[torch.arange(rows, device=table.device) % len(table)]


def sinusoidal(rows: int, width: int) -> Tensor:
    """Return the table of sines (even columns) and cosines (odd ones) of Vaswani et al. 2017, section 3.5."""
    speed = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * speed
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()


def _scale_rotary(base: PreTrainedModel, old: int, new: int, how: str) -> None:
    """Scale the frequencies of layers that see whole texts; layers with a window of their own see no new distance.

    "ntk" raises the base so that the slowest frequency turns over the new length as it did over the old (NTK-aware
    scaling); "yarn" is Peng et al. 2023, section 3, as transformers computes it. Both are fixed: transformers' dynamic
    scaling goes by the longest text of a batch, so that neighbours would change each other's answers.
    """
    if how == "auto":
        return
    config: Any = base.config
    whole = config.rope_parameters["full_attention"]
    if how == "yarn":  # of a model that was scaled before, from what it learned
        old = whole.get("original_max_position_embeddings", old)
    factor = new / old
    if how == "ntk":
        width = config.hidden_size // config.num_attention_heads
        whole["rope_theta"] = whole["rope_theta"] * factor ** (width / (width - 2))
    else:
        whole |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": old}
    base.rotary_emb = type(base.rotary_emb)(config).to(base.device)
