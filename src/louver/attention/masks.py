"""General masks: conversions from the conventions in use, and the dense mask of a pattern.

Shape letters: B batch, H heads, T query tokens, S key tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from louver.attention.request import Request
from louver.errors import OptionError
from louver.patterns import Full, Pattern, is_length_free


def from_zero_one(mask: Tensor) -> Tensor:
    """Convert a mask of ones (may attend) and zeros (may not) to bool.

    Args:
        mask: any shape; integers or floats that are all 0 or 1.

    Raises:
        OptionError: if another value is found, as in an additive mask.
    """
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise OptionError("a zero-one mask holds only 0 and 1; for 0 and large negative numbers use from_additive")
    return mask.bool()


def from_additive(mask: Tensor) -> Tensor:
    """Convert an additive mask, 0 where attention is allowed and hugely negative elsewhere, to bool.

    Args:
        mask: any shape, floats.

    Raises:
        OptionError: if a value is neither 0 nor at most -1e4: that is a bias, not a mask.
    """
    allowed = mask == 0
    if not bool((allowed | (mask <= -1e4)).all()):
        raise OptionError("an additive mask holds only 0 and numbers up to -1e4; louver's masks carry no bias")
    return allowed


def pair_mask(request: Request) -> Tensor | None:
    """Build the dense mask of a plain pattern and of all that belongs to the batch.

    Returns:
        Bool (B|1, H|1, T, S), True = may attend; or None if every pair is allowed.
    """
    pattern, lengths_B, documents = request.pattern, request.lengths_B, request.documents
    tokens, keys, device = request.q_BHTD.shape[2], request.k_BHSD.shape[2], request.q_BHTD.device
    parts: list[Tensor] = []
    if documents is not None:
        places_BT, numbers_BT = documents.places(), documents.numbers_BT
        inside_BTS = pattern.allows(places_BT[:, :, None], places_BT[:, None, :], documents.lengths()[:, :, None])
        inside_BTS = _with_globals(inside_BTS, request.global_BT)
        parts.append((inside_BTS & (numbers_BT[:, :, None] == numbers_BT[:, None, :]))[:, None])
    elif not isinstance(pattern, Full):
        inside_TS = pattern_mask(pattern, row_length(request), tokens, keys, device)
        parts.append(_with_globals(inside_TS[None], request.global_BT)[:, None])
    if lengths_B is not None:
        parts.append((torch.arange(keys, device=device) < lengths_B[:, None])[:, None, None])
    if request.mask_BHTS is not None:
        parts.append(request.mask_BHTS)
    return meet(parts)


def meet(masks: Sequence[Tensor]) -> Tensor | None:
    """Return the pairs that all masks allow; None for no mask."""
    result: Tensor | None = None
    for mask in masks:
        result = mask if result is None else result & mask
    return result


def _with_globals(mask_BTS: Tensor, global_BT: Tensor | None) -> Tensor:
    return mask_BTS if global_BT is None else mask_BTS | global_BT[:, :, None] | global_BT[:, None, :]


def row_length(request: Request) -> int:
    """Return the length that a pattern goes by: `attend` gives those that read it rows of one length."""
    lengths_B = request.lengths_B
    if lengths_B is None or is_length_free(request.pattern):
        return request.q_BHTD.shape[2]
    return max(1, int(lengths_B[0]))


def pattern_mask(pattern: Pattern, length: int, tokens: int, keys: int, device: torch.device) -> Tensor:
    """Return the (tokens, keys) mask of a plain pattern, by a length that may be less than the tokens."""
    queries_T = torch.arange(tokens, device=device)[:, None]
    keys_S = torch.arange(keys, device=device)[None, :]
    mask: Tensor = pattern.allows(queries_T, keys_S, length)
    return mask.expand(tokens, keys)
