"""One softmax over keys that lie in several places: each part by torch's fused kernel, joined by their log-sum-exps.

The fused CPU kernel returns, beside its output, the logarithm of the sum of exponentials of each row. Two parts that
hold different keys of one softmax are therefore joined exactly: out = Σ out_i · exp(lse_i - lse) with
lse = log Σ exp(lse_i) (Dao et al. 2022, section 3.1; Rabe & Staats 2021). Backward, the kernel only needs the joined
output and log-sum-exp to give each part its own gradients. Keys are read as overlapping views of one padded buffer, so
nothing is copied for a window; a table of blocks is gathered once.

The kernel is torch's own, called by its internal name, because `scaled_dot_product_attention` keeps the log-sum-exp to
itself; `available` says whether this torch has it.

Shape letters: B batch, H heads, T tokens, D numbers a head; N blocks of all texts, Q queries a block, K keys a block,
C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_OPS = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16)


class Part(Protocol):
    """Some keys of every query, and how both are laid out for one call of the kernel."""

    @property
    def mask(self) -> Tensor | None:
        """What is added to the products: broadcasts to (N, H, Q, K), in the dtype of the queries."""
        ...

    def queries(self, x_BTHD: Tensor) -> Tensor:
        """View queries, outputs or their gradients as (N, H, Q, D)."""
        ...

    def keys(self, x_BTHD: Tensor) -> Tensor:
        """Lay keys or values out as (N, H, K, D)."""
        ...

    def from_keys(self, x_NHKD: Tensor, like_BTHD: Tensor) -> Tensor:
        """Add up the gradients of every copy of a key: (B, T, H, D)."""
        ...


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Queries in blocks of one size."""

    size: int
    mask: Tensor | None

    def queries(self, x_BTHD: Tensor) -> Tensor:
        """View as blocks."""
        return x_BTHD.reshape(-1, self.size, *x_BTHD.shape[2:]).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Windows(_Blocks):
    """A band around each block of queries, read as overlapping views of one buffer with a margin at both ends.

    Neighbouring texts of a batch lie behind each other; what a window reads of them, the mask takes out.
    """

    left: int
    right: int

    def keys(self, x_BTHD: Tensor) -> Tensor:
        """View as overlapping windows."""
        batch, tokens, heads, width = x_BTHD.shape
        buffer = x_BTHD.new_zeros(self.left + batch * tokens + self.right, heads, width)
        buffer[self.left : self.left + batch * tokens] = x_BTHD.reshape(-1, heads, width)
        return self._windows(buffer, 0, self.left + self.size + self.right).transpose(1, 2)

    def from_keys(self, x_NHKD: Tensor, like_BTHD: Tensor) -> Tensor:
        """Add windows up where they overlap, one stretch of a block's length at a time."""
        x_NKHD = x_NHKD.transpose(1, 2)
        batch, tokens, heads, width = like_BTHD.shape
        buffer = x_NHKD.new_zeros(self.left + batch * tokens + self.right, heads, width)
        for start in range(0, x_NKHD.shape[1], self.size):
            piece = x_NKHD[:, start : start + self.size]
            self._windows(buffer, start, piece.shape[1]).add_(piece)
        return buffer[self.left : self.left + batch * tokens].view(batch, tokens, heads, width)

    def _windows(self, buffer: Tensor, start: int, length: int) -> Tensor:
        heads, width = buffer.shape[1:]
        row = heads * width
        blocks = (buffer.shape[0] - self.left - self.right) // self.size
        return buffer.as_strided((blocks, length, heads, width), (self.size * row, row, width, 1), start * row)


@dataclass(frozen=True, eq=False)
class Table(_Blocks):
    """Key blocks by number, gathered."""

    numbers_NW: Tensor
    """Key blocks of each block of one text's queries; masked where there is none."""

    def keys(self, x_BTHD: Tensor) -> Tensor:
        """Copy each block's key blocks behind each other."""
        batch, tokens, heads, width = x_BTHD.shape
        blocks = x_BTHD.reshape(batch, tokens // self.size, self.size, heads, width)
        found = blocks.index_select(1, self.numbers_NW.flatten())
        return found.reshape(-1, self.numbers_NW.shape[1] * self.size, heads, width).transpose(1, 2)

    def from_keys(self, x_NHKD: Tensor, like_BTHD: Tensor) -> Tensor:
        """Add the copies up."""
        batch, tokens, heads, width = like_BTHD.shape
        copies = x_NHKD.transpose(1, 2).reshape(batch, -1, self.size, heads, width)
        blocks = copies.new_zeros(batch, tokens // self.size, self.size, heads, width)
        return blocks.index_add_(1, self.numbers_NW.flatten(), copies).view(batch, tokens, heads, width)


@dataclass(frozen=True, eq=False)
class Columns:
    """A few keys that every query may see."""

    positions_C: Tensor
    mask: Tensor | None

    def queries(self, x_BTHD: Tensor) -> Tensor:
        """View as whole texts."""
        return x_BTHD.transpose(1, 2)

    def keys(self, x_BTHD: Tensor) -> Tensor:
        """Copy the columns."""
        return x_BTHD.index_select(1, self.positions_C).transpose(1, 2)

    def from_keys(self, x_NHKD: Tensor, like_BTHD: Tensor) -> Tensor:
        """Put the gradients in their places."""
        return torch.zeros_like(like_BTHD).index_add_(1, self.positions_C, x_NHKD.transpose(1, 2))


def available(q_BHTD: Tensor, dropout: float) -> bool:
    """Say whether the kernel can do it: on a CPU, in float32 or bfloat16, without dropout, outside a trace."""
    return (
        q_BHTD.device.type == "cpu"
        and q_BHTD.dtype in _DTYPES
        and not dropout
        and not torch.compiler.is_compiling()
        and hasattr(_OPS, "_scaled_dot_product_flash_attention_for_cpu")
    )


def joined(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
    """Attend to the keys of all parts in one softmax.

    Args:
        q_BTHD: queries; tokens are a multiple of every part's block.
        k_BTHD: keys.
        v_BTHD: values.
        parts: no key of a query may be in two of them.
        scale: factor on the products.

    Returns:
        (B, T, H, D); rows whose keys are all masked hold finite numbers without meaning.
    """
    inputs = (_readable(x) for x in (q_BTHD, k_BTHD, v_BTHD))
    found: Tensor = _Joined.apply(*inputs, tuple(parts), scale)  # type: ignore[no-untyped-call]
    return found


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: tuple[Part, ...], scale: float) -> Tensor:
        out, lse = _call(parts[0], q, k, v, scale)
        for part in parts[1:]:
            more, lse_more = _call(part, q, k, v, scale)
            total = torch.logaddexp(lse, lse_more)
            out = out.lerp_(more, lse_more.sub_(total).exp_().to(out.dtype)[..., None])
            lse = total
        out = out.view_as(q)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        g = _readable(gradients[0])
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        lse_BTH = lse.view(*q.shape[:3])
        for part in ctx.parts:
            dq_NHQD, dk_NHKD, dv_NHKD = _OPS._scaled_dot_product_flash_attention_for_cpu_backward(
                part.queries(g),
                part.queries(q),
                part.keys(k),
                part.keys(v),
                part.queries(out),
                part.queries(lse_BTH[..., None])[..., 0].contiguous(),
                0.0,
                False,
                attn_mask=part.mask,
                scale=ctx.scale,
            )
            dq += _flat(dq_NHQD).view_as(q)
            dk += part.from_keys(dk_NHKD, k)
            dv += part.from_keys(dv_NHKD, v)
        return dq, dk, dv, None, None


def _call(part: Part, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return one part's output (B · T, H, D) and log-sum-exp (B · T, H)."""
    out_NHQD, lse_NHQ = _OPS._scaled_dot_product_flash_attention_for_cpu(
        part.queries(q), part.keys(k), part.keys(v), 0.0, False, attn_mask=part.mask, scale=scale
    )
    return _flat(out_NHQD), _flat(lse_NHQ[..., None])[..., 0]


def _flat(x_NHQD: Tensor) -> Tensor:
    """Lay blocks, and all texts, behind each other: (B · T, H, D)."""
    return x_NHQD.transpose(1, 2).flatten(0, 1)


def _readable(x_BTHD: Tensor) -> Tensor:
    """Copy a tensor whose numbers of a head do not lie beside each other: the kernel takes that for granted."""
    return x_BTHD if x_BTHD.stride(-1) == 1 else x_BTHD.contiguous()
