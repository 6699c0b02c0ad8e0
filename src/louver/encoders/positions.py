"""Longer position tables for models that learned 512.

Learned tables are tiled: row i of the new table is row i mod n of the old one (Beltagy et al. 2020, section 5, copy the
positions to keep the local structure that was learned). Rotary models need no table; under a window every distance in
use was seen in training, so their frequencies stay as they are and short texts keep their answers.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from louver.attention.gathered import BLOCK
from louver.encoders.plug import base_of, family_of
from louver.errors import OptionError


def offset(model: PreTrainedModel) -> int:
    """Return the rows of the position table that stand before the first token's."""
    padded = family_of(model.config).padded_positions
    return int(model.config.pad_token_id) + 1 if padded else 0


def length(model: PreTrainedModel) -> int:
    """Return the tokens that a model's positions reach."""
    return int(model.config.max_position_embeddings) - offset(model)


def extend(model: PreTrainedModel, max_length: int) -> None:
    """Let a model's positions reach at least `max_length` tokens, in place; a table that is long enough stays as it is.

    Args:
        model: an encoder of a supported family, with or without a head.
        max_length: tokens, specials included.

    Raises:
        OptionError: if `max_length` is not positive.
    """
    if max_length < 1:
        raise OptionError(f"max_length must be positive, got {max_length}; 4096 is a common choice")
    before, old = offset(model), length(model)
    if max_length <= old:
        return
    # sparse graphs pad to whole blocks, and the padding needs rows too
    max_length = -(-max_length // BLOCK) * BLOCK if max_length > BLOCK else max_length
    family = family_of(model.config)
    model.config.max_position_embeddings = max_length + before
    base_of(model).config.max_position_embeddings = max_length + before
    if family.embeddings is None:
        return
    embeddings = base_of(model).get_submodule(family.embeddings)
    table = embeddings.position_embeddings
    assert isinstance(table, nn.Embedding)
    weight = table.weight.data
    rows = torch.arange(max_length, device=weight.device) % old + before
    longer = torch.cat([weight[:before], weight[rows]])
    embeddings.position_embeddings = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        longer, freeze=not table.weight.requires_grad, padding_idx=table.padding_idx
    )
    total = max_length + before
    embeddings.register_buffer("position_ids", torch.arange(total, device=weight.device)[None], persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        zeros = torch.zeros(1, total, dtype=torch.long, device=weight.device)
        embeddings.register_buffer("token_type_ids", zeros, persistent=False)
