"""Dense attention by torch's fused kernel (SDPA): exact for every pattern, O(T · S) time.

A pattern other than `Full` costs a T x S boolean mask. Softmax statistics are float32 inside the kernel.
Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from torch import Tensor

from louver.attention.kernel import fused
from louver.attention.masks import pair_mask
from louver.attention.request import Backend, Request


def compute(request: Request) -> tuple[Tensor, None]:
    """Call SDPA with the pattern's mask, or with none where every pair is allowed."""
    mask_BHTS = pair_mask(
        request.pattern,
        request.q_BHTD.shape[2],
        request.k_BHSD.shape[2],
        request.q_BHTD.device,
        lengths_B=request.lengths_B,
        mask_BHTS=request.mask_BHTS,
        documents_BT=request.documents_BT,
        global_BT=request.global_BT,
    )
    found = attend_masked(request.q_BHTD, request.k_BHSD, request.v_BHSD, mask_BHTS, request.scale, request.dropout)
    return found, None


def attend_masked(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask_BHTS: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Call SDPA so that a query that sees nothing gets zeros.

    Args:
        q_BHTD: queries.
        k_BHSD: keys.
        v_BHSD: values.
        mask_BHTS: bool that broadcasts, True = may attend; None for every pair.
        scale: factor on the products.
        dropout: probability that a weight is dropped.
    """
    if mask_BHTS is None:
        return fused(q_BHTD, k_BHSD, v_BHSD, None, scale, dropout)
    # A row without keys is NaN in some kernels: let it see everything, then clear it.
    blind_BHT1 = ~mask_BHTS.any(-1, keepdim=True)
    out_BHTD = fused(q_BHTD, k_BHSD, v_BHSD, mask_BHTS | blind_BHT1, scale, dropout)
    return out_BHTD.masked_fill(blind_BHT1, 0.0)


BACKEND = Backend(compute, any_mask=True, documents=True, weights=False)
