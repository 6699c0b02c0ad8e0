"""The one call that multiplies: torch's fused attention, or its plain steps while a graph is traced for ONNX.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

UNSEEN = -1e9
"""Added to the products of pairs that are not allowed; exp of it is 0 in float32 beside any allowed pair."""


def fused(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Return softmax(q kᵀ · scale) v over the pairs of a mask.

    The exporter writes a NaN guard after the softmax of `scaled_dot_product_attention`, which took a quarter of the
    whole graph's time in onnxruntime. Here no row is empty, so the plain steps need none.

    Args:
        q_BHTD: queries.
        k_BHSD: keys.
        v_BHSD: values.
        mask: bool that broadcasts to (B, H, T, S), True = may attend; every row must have one True.
        scale: factor on the products.
        dropout: probability that a weight is dropped.
    """
    if not torch.compiler.is_exporting():
        return scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD, attn_mask=mask, dropout_p=dropout, scale=scale)
    scores_BHTS = (q_BHTD * scale) @ k_BHSD.transpose(-1, -2)
    if mask is not None:
        scores_BHTS = scores_BHTS + torch.where(mask, 0.0, UNSEEN).to(scores_BHTS.dtype)
    return scores_BHTS.softmax(-1) @ v_BHSD


def fused_masked(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask_BHTS: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Do the same with any mask: a query that sees nothing gets zeros.

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
