"""Dense attention by torch's fused kernel (SDPA): exact for every pattern, O(T · S) time.

A pattern other than `Full` costs a T x S boolean mask. Softmax statistics are float32 inside the kernel.
Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from torch import Tensor

from louver.attention.kernel import fused_masked
from louver.attention.masks import pair_mask
from louver.attention.request import Backend, Request


def compute(request: Request) -> tuple[Tensor, None]:
    """Call SDPA with the pattern's mask, or with none where every pair is allowed."""
    mask_BHTS = pair_mask(request)
    found = fused_masked(request.q_BHTD, request.k_BHSD, request.v_BHSD, mask_BHTS, request.scale, request.dropout)
    return found, None


BACKEND = Backend(compute, any_mask=True, documents=True, weights=False)
