"""The oracle: attention as it is written in papers, dense, in at least float32. Slow on purpose.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from louver.attention.masks import pair_mask
from louver.attention.request import Backend, Request


def compute(request: Request) -> tuple[Tensor, Tensor]:
    """Compute softmax(q kᵀ · scale) v over the allowed pairs (Vaswani et al. 2017, equation 1).

    Returns:
        The output (B, H, T, D) and the weights (B, H, T, S). A query that may see nothing gets zeros.
    """
    mask_BHTS = pair_mask(request)
    weights_BHTS = weights(request.q_BHTD, request.k_BHSD, mask_BHTS, request.scale)
    dropped_BHTS = torch.nn.functional.dropout(weights_BHTS, request.dropout) if request.dropout else weights_BHTS
    out_BHTD = (dropped_BHTS @ request.v_BHSD.to(weights_BHTS.dtype)).to(request.v_BHSD.dtype)
    wanted = request.weights_of
    return out_BHTD, weights_BHTS if wanted is None else weights_BHTS[:, list(wanted)]


def weights(q_BHTD: Tensor, k_BHSD: Tensor, mask_BHTS: Tensor | None, scale: float) -> Tensor:
    """Return softmax(q kᵀ · scale) over the allowed pairs, in at least float32; zeros where a query sees nothing."""
    precision = torch.promote_types(q_BHTD.dtype, torch.float32)
    scores_BHTS = (q_BHTD.to(precision) @ k_BHSD.to(precision).transpose(-1, -2)) * scale
    if mask_BHTS is None:
        return scores_BHTS.softmax(-1)
    blind_BHT1 = ~mask_BHTS.any(-1, keepdim=True)
    scores_BHTS = scores_BHTS.masked_fill(~(mask_BHTS | blind_BHT1), float("-inf"))
    return scores_BHTS.softmax(-1).masked_fill(blind_BHT1, 0.0)


BACKEND = Backend(compute, any_mask=True, documents=True, weights=True)
