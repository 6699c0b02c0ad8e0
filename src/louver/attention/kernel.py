"""The one call that multiplies: torch's fused attention, or its plain steps while a graph is traced for ONNX.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        mask: broadcasts to (B, H, T, S): bool, True = may attend, or numbers to add; every row must see something.
        scale: factor on the products.
        dropout: probability that a weight is dropped.
    """
    if not torch.compiler.is_exporting():
        return scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD, attn_mask=mask, dropout_p=dropout, scale=scale)
    scores_BHTS = (q_BHTD * scale) @ k_BHSD.transpose(-1, -2)
    if mask is not None:
        scores_BHTS = scores_BHTS + torch.where(mask, 0.0, UNSEEN).to(scores_BHTS.dtype)
    return scores_BHTS.softmax(-1) @ v_BHSD


@dataclass(frozen=True, eq=False)
class Sight:
    """A mask that the kernel can take: no row of it is empty.

    Attributes:
        mask: broadcasts to (B, H, T, S); bool, True = may attend, or numbers to add to the products. A row without keys
            is NaN in some kernels, so it is given all of them here.
        blind: True for those rows, (…, T, 1); None if there is none.
    """

    mask: Tensor
    blind: Tensor | None

    @classmethod
    def of(cls, mask: Tensor) -> Sight:
        """Read a mask: bool that broadcasts to (B, H, T, S), True = may attend."""
        blind = ~mask.any(-1, keepdim=True)
        return cls(mask | blind, blind)

    def settled(self, real: Tensor | None = None) -> Sight:
        """Look whether any row is empty at all: waits for the device, and pays for masks that are used again.

        Args:
            real: True for queries that count, broadcasts to (B, H, T, 1); the caller clears the others anyway.
        """
        if self.blind is None or bool((self.blind if real is None else self.blind & real).any()):
            return self
        return Sight(self.mask, None)

    def added(self, dtype: torch.dtype) -> Sight:
        """Return the mask as numbers to add to the products, 0 or minus infinity."""
        zeros = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
        return Sight(zeros.masked_fill_(~self.mask, float("-inf")), self.blind)


def fused_masked(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, sight: Sight | None, scale: float, dropout: float
) -> Tensor:
    """Do the same with any mask: a query that sees nothing gets zeros.

    Args:
        q_BHTD: queries.
        k_BHSD: keys.
        v_BHSD: values.
        sight: who sees whom; None for every pair.
        scale: factor on the products.
        dropout: probability that a weight is dropped.
    """
    out_BHTD = fused(q_BHTD, k_BHSD, v_BHSD, None if sight is None else sight.mask, scale, dropout)
    return out_BHTD if sight is None or sight.blind is None else out_BHTD.masked_fill(sight.blind, 0.0)
