"""Dense attention by torch's fused kernel (SDPA): exact for every pattern, O(T · S) time.

A pattern other than `Full` costs a T x S boolean mask. Softmax statistics are float32 inside the kernel.
Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from louver.attention.kernel import Sight, fused_masked
from louver.attention.masks import pair_mask, pattern_mask
from louver.attention.padding import Padding
from louver.attention.request import Backend, Request
from louver.patterns import Full, Pattern

_ADDED_PAIRS = 1 << 20
"""Pairs up to which a kept mask is numbers to add, which SDPA would make of it in every call: 4 MB in float32."""


def compute(request: Request) -> tuple[Tensor, None]:
    """Call SDPA with the pattern's mask, or with none where every pair is allowed."""
    sight = _sight(request)
    found = fused_masked(request.q_BHTD, request.k_BHSD, request.v_BHSD, sight, request.scale, request.dropout)
    return found, None


def _sight(request: Request) -> Sight | None:
    """Return who sees whom; kept for the next call where it is the pattern's alone, for the next layer with padding."""
    plain = request.mask_BHTS is None and request.documents is None and request.global_BT is None
    if not plain or torch.compiler.is_compiling():
        mask_BHTS = pair_mask(request)
        return None if mask_BHTS is None else Sight.of(mask_BHTS)
    padding = request.padding
    if padding is not None:
        return padding.keep((request.pattern, "sight"), lambda: _padded_sight(request, padding))
    if isinstance(request.pattern, Full):
        return None
    q_BHTD = request.q_BHTD
    return _kept_sight(request.pattern, q_BHTD.shape[2], request.k_BHSD.shape[2], q_BHTD.dtype, q_BHTD.device)


def _padded_sight(request: Request, padding: Padding) -> Sight:
    mask_BHTS = pair_mask(request)
    assert mask_BHTS is not None
    return Sight.of(mask_BHTS).settled(padding.mask_BT[:, None, :, None])


@lru_cache(maxsize=8)  # few: a mask of 4,096 tokens takes 16 MB
@torch.inference_mode(False)  # what is kept must serve training too
def _kept_sight(pattern: Pattern, tokens: int, keys: int, dtype: torch.dtype, device: torch.device) -> Sight:
    sight = Sight.of(pattern_mask(pattern, tokens, tokens, keys, device)).settled()
    return sight.added(dtype) if tokens * keys <= _ADDED_PAIRS else sight


BACKEND = Backend(compute, any_mask=True, documents=True, weights=False)
