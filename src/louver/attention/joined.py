"""One softmax over keys that lie in several places: each piece by torch's fused kernel, joined by their log-sum-exps.

The fused CPU kernel returns, beside its output, the logarithm of the sum of exponentials of each row. Two pieces that
hold different keys of one softmax are therefore joined exactly: out = Σ out_i · exp(lse_i - lse) with
lse = log Σ exp(lse_i) (Dao et al. 2022, section 3.1; Rabe & Staats 2021). Backward, the kernel only needs the joined
output and log-sum-exp to give each piece its own gradients. Windows are overlapping views, so nothing is copied for
them; pieces are small enough for the caches, and no tensor is longer than the text.

The kernel is torch's own, called by its internal name, because `scaled_dot_product_attention` keeps the log-sum-exp to
itself; `available` says whether this torch has it.

Shape letters: B batch, H heads, T tokens, D numbers a head; N blocks of a piece, Q queries a block, K keys a block,
C columns, R rows, P tokens of a residue class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

_OPS = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Piece(ABC):
    """Queries of one text, some of their keys, and how both are laid out for one call of the kernel.

    Attributes:
        start: first query.
        stop: query after the last.
        size: queries a block.
        blocks: how many.
        mask: (N | 1, 1, Q, K), added to the products; None if all pairs are allowed.
    """

    start: int
    stop: int
    size: int
    blocks: int
    mask: Tensor | None

    def queries(self, x_THD: Tensor) -> Tensor:
        """Lay queries, outputs or their gradients out as (N, H, Q, D); a view unless the last block is cut."""
        return self.laid(x_THD[self.start : self.stop])

    def laid(self, own_THD: Tensor) -> Tensor:
        """Lay out what belongs to the piece's queries alone."""
        return self._filled(own_THD).reshape(self.blocks, self.size, *own_THD.shape[1:]).transpose(1, 2)

    def _filled(self, own_THD: Tensor) -> Tensor:
        missing = self.size * self.blocks - len(own_THD)
        return pad(own_THD, (0, 0, 0, 0, 0, missing)) if missing else own_THD

    def sums(self, lse_TH: Tensor) -> Tensor:
        """Lay log-sum-exps out as (N, H, Q)."""
        return self.queries(lse_TH[..., None])[..., 0].contiguous()

    def tokens(self, x_NHQD: Tensor) -> Tensor:
        """Return what belongs to the queries, in their order: (stop - start, H, D)."""
        return x_NHQD.transpose(1, 2).flatten(0, 1)[: self.stop - self.start]

    @property
    @abstractmethod
    def width(self) -> int:
        """Keys a block, K."""

    @abstractmethod
    def keys(self, x_THD: Tensor) -> Tensor:
        """Lay keys or values out as (N, H, K, D)."""

    @abstractmethod
    def add_keys(self, total_THD: Tensor, x_NHKD: Tensor) -> None:
        """Add the gradients of every copy of a key to its place."""


@dataclass(frozen=True, eq=False)
class Windows(Piece):
    """A band around each block of queries, read as overlapping views."""

    left: int
    right: int

    @property
    def width(self) -> int:
        """The block and both sides."""
        return self.left + self.size + self.right

    def keys(self, x_THD: Tensor) -> Tensor:
        """View as overlapping windows, of a copy with a margin where they reach over an end of the text."""
        first = self.start - self.left
        last = self.start + self.blocks * self.size + self.right
        part = x_THD[max(first, 0) : last]
        if len(part) < last - first:
            before = max(-first, 0)
            part = pad(part, (0, 0, 0, 0, before, last - first - len(part) - before))
        return part.unfold(0, self.width, self.size).transpose(2, 3)

    def add_keys(self, total_THD: Tensor, x_NHKD: Tensor) -> None:
        """Add windows up where they overlap, one stretch of a block's length at a time."""
        first = self.start - self.left
        last = self.start + self.blocks * self.size + self.right
        inside = first >= 0 and last <= len(total_THD)
        room = total_THD[first:last] if inside else total_THD.new_zeros(last - first, *total_THD.shape[1:])
        for start in range(0, self.width, self.size):
            stretch = x_NHKD[:, :, start : start + self.size]
            width = stretch.shape[2]
            place = room[start:].unfold(0, width, self.size)[: self.blocks]
            place.add_(stretch.transpose(2, 3))
        if not inside:
            clipped = slice(max(first, 0), min(last, len(total_THD)))
            total_THD[clipped].add_(room[clipped.start - first : clipped.stop - first])


@dataclass(frozen=True, eq=False)
class Table(Piece):
    """Keys by number, gathered; a masked place may hold any key."""

    numbers_NK: Tensor
    """Positions of all blocks' keys, flat."""

    @property
    def width(self) -> int:
        """Keys of one block."""
        return len(self.numbers_NK) // self.blocks

    def keys(self, x_THD: Tensor) -> Tensor:
        """Copy each block's keys behind each other."""
        return x_THD.index_select(0, self.numbers_NK).view(self.blocks, -1, *x_THD.shape[1:]).transpose(1, 2)

    def add_keys(self, total_THD: Tensor, x_NHKD: Tensor) -> None:
        """Add the copies up."""
        total_THD.index_add_(0, self.numbers_NK, x_NHKD.transpose(1, 2).flatten(0, 1).to(total_THD.dtype))


@dataclass(frozen=True, eq=False)
class Columns(Piece):
    """A few keys that every query may see."""

    positions_C: Tensor

    @property
    def width(self) -> int:
        """The columns."""
        return len(self.positions_C)

    def keys(self, x_THD: Tensor) -> Tensor:
        """Copy the columns."""
        return x_THD.index_select(0, self.positions_C)[None].transpose(1, 2)

    def add_keys(self, total_THD: Tensor, x_NHKD: Tensor) -> None:
        """Add the gradients in their places."""
        total_THD.index_add_(0, self.positions_C, x_NHKD[0].transpose(0, 1).to(total_THD.dtype))


@dataclass(frozen=True, eq=False)
class Classes(Piece):
    """Tokens whose distance is a multiple of a stride: `blocks` residue classes of `size` tokens."""

    @property
    def width(self) -> int:
        """The class."""
        return self.size

    def laid(self, own_THD: Tensor) -> Tensor:
        """View as residue classes: (N, H, P, D)."""
        return self._filled(own_THD).reshape(self.size, self.blocks, *own_THD.shape[1:]).permute(1, 2, 0, 3)

    def tokens(self, x_NHQD: Tensor) -> Tensor:
        """Put classes back into the order of the text."""
        return x_NHQD.permute(2, 0, 1, 3).flatten(0, 1)[: self.stop]

    def keys(self, x_THD: Tensor) -> Tensor:
        """View as residue classes."""
        return self.laid(x_THD)

    def add_keys(self, total_THD: Tensor, x_NHKD: Tensor) -> None:
        """Add the gradients in the order of the text."""
        total_THD.add_(self.tokens(x_NHKD))


@dataclass(frozen=True, eq=False)
class Cut:
    """One text's attention as calls of the kernel.

    Attributes:
        length: tokens.
        pieces: no key of a query is in two of them; together they cover stretches from the text's start.
        rows_R: queries that are computed over all keys, whatever the pieces say of them.
        rows_mask: (1, 1, R, T), added to their products; None if they see all.
        blind_X: queries that see nothing.
    """

    length: int
    pieces: tuple[Piece, ...]
    rows_R: Tensor
    rows_mask: Tensor | None
    blind_X: Tensor

    @cached_property
    def strangers(self) -> tuple[Tensor, ...]:
        """Queries of each piece, counted from its start, whose gradient is not its own."""
        apart = torch.cat([self.rows_R, self.blind_X])
        return tuple(apart[(apart >= p.start) & (apart < p.stop)] - p.start for p in self.pieces)

    @cached_property
    def pairs(self) -> int:
        """Pairs that the kernel computes, those in vain included."""
        return sum(p.size * p.blocks * p.width for p in self.pieces) + len(self.rows_R) * self.length

    @cached_property
    def copied_pairs(self) -> int:
        """Pairs whose keys are copied together first."""
        return sum(p.size * p.blocks * p.width for p in self.pieces if isinstance(p, Table))

    @cached_property
    def bytes(self) -> int:
        """Memory of the masks and tables, those that pieces share counted once."""
        tensors = [t for p in self.pieces for t in vars(p).values() if isinstance(t, Tensor)]
        tensors += [] if self.rows_mask is None else [self.rows_mask]
        return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())


def available(q_BHTD: Tensor, dropout: float) -> bool:
    """Say whether the kernel can do it: on a CPU, in float32 or bfloat16, without dropout, outside a trace."""
    return (
        q_BHTD.device.type == "cpu"
        and q_BHTD.dtype in _DTYPES
        and not dropout
        and not torch.compiler.is_compiling()
        and hasattr(_OPS, "_scaled_dot_product_flash_attention_for_cpu")
    )


def joined(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, cuts: Sequence[Cut], scale: float) -> Tensor:
    """Attend to the keys of all pieces in one softmax.

    Args:
        q_BTHD: queries.
        k_BTHD: keys.
        v_BTHD: values.
        cuts: of each text of the batch; tokens beyond a text's length are padding.
        scale: factor on the products.

    Returns:
        (B, T, H, D); zeros for padding and for queries that see nothing.
    """
    inputs = (_readable(x) for x in (q_BTHD, k_BTHD, v_BTHD))
    found: Tensor = _Joined.apply(*inputs, tuple(cuts), scale)  # type: ignore[no-untyped-call]
    return found


class _Text(NamedTuple):
    """One text of a batch."""

    q_THD: Tensor
    k_THD: Tensor
    v_THD: Tensor
    out_THD: Tensor
    lse_TH: Tensor


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cuts: tuple[Cut, ...], scale: float) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        lse = torch.empty(q.shape[:3], dtype=torch.float32)
        for row, cut in enumerate(cuts):
            _forward(_Text(*(x[row, : cut.length] for x in (q, k, v, out, lse))), cut, scale)
            out[row, cut.length :].zero_()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.cuts, ctx.scale = cuts, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g = _readable(gradients[0])
        saved = ctx.saved_tensors
        dq, dk, dv = (torch.zeros(g.shape, dtype=torch.float32) for _ in range(3))
        for row, cut in enumerate(ctx.cuts):
            text = _Text(*(x[row, : cut.length] for x in saved))
            g_THD, *sums = (x[row, : cut.length] for x in (g, dq, dk, dv))
            _backward(g_THD, text, cut, ctx.scale, *sums)
        return dq.to(g.dtype), dk.to(g.dtype), dv.to(g.dtype), None, None


def _forward(text: _Text, cut: Cut, scale: float) -> None:
    """Fill a text's output and log-sum-exps."""
    written = 0
    for piece in cut.pieces:
        inputs = piece.queries(text.q_THD), piece.keys(text.k_THD), piece.keys(text.v_THD)
        found, sums = _kernel(*inputs, piece.mask, scale)
        more, more_lse = piece.tokens(found), piece.tokens(sums[..., None])[..., 0]
        out, lse = text.out_THD[piece.start : piece.stop], text.lse_TH[piece.start : piece.stop]
        if piece.start >= written:
            out.copy_(more)
            lse.copy_(more_lse)
            written = piece.stop
            continue
        total = torch.logaddexp(lse, more_lse)
        out.lerp_(more, (more_lse - total).exp_().to(more.dtype)[..., None])
        lse.copy_(total)
    rows = cut.rows_R
    if len(rows):
        inputs = _heads_first(text.q_THD[rows]), _heads_first(text.k_THD), _heads_first(text.v_THD)
        found, sums = _kernel(*inputs, cut.rows_mask, scale)
        text.out_THD[rows] = found[0].transpose(0, 1)
        text.lse_TH[rows] = sums[0].transpose(0, 1)
    if len(cut.blind_X):
        text.out_THD[cut.blind_X] = 0.0
        text.lse_TH[cut.blind_X] = 0.0


def _backward(
    g_THD: Tensor, text: _Text, cut: Cut, scale: float, dq_THD: Tensor, dk_THD: Tensor, dv_THD: Tensor
) -> None:
    """Add one text's gradients to `dq_THD`, `dk_THD` and `dv_THD`."""
    for piece, strangers in zip(cut.pieces, cut.strangers, strict=True):
        own_THD = g_THD[piece.start : piece.stop]
        if len(strangers):
            own_THD = own_THD.index_fill(0, strangers, 0.0)
        inputs = piece.queries(text.q_THD), piece.keys(text.k_THD), piece.keys(text.v_THD)
        outputs = piece.queries(text.out_THD), piece.sums(text.lse_TH)
        dq, dk, dv = _kernel_backward(piece.laid(own_THD), *inputs, *outputs, piece.mask, scale)
        dq_THD[piece.start : piece.stop] += piece.tokens(dq)
        piece.add_keys(dk_THD, dk)
        piece.add_keys(dv_THD, dv)
    rows = cut.rows_R
    if len(rows):
        inputs = _heads_first(text.q_THD[rows]), _heads_first(text.k_THD), _heads_first(text.v_THD)
        outputs = _heads_first(text.out_THD[rows]), text.lse_TH[rows].transpose(0, 1)[None].contiguous()
        dq, dk, dv = _kernel_backward(_heads_first(g_THD[rows]), *inputs, *outputs, cut.rows_mask, scale)
        dq_THD[rows] += dq[0].transpose(0, 1)
        dk_THD += dk[0].transpose(0, 1)
        dv_THD += dv[0].transpose(0, 1)


def _kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exps."""
    found: tuple[Tensor, Tensor] = _OPS._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=mask, scale=scale
    )
    return found


def _kernel_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    found: tuple[Tensor, Tensor, Tensor] = _OPS._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, out, lse, 0.0, False, attn_mask=mask, scale=scale
    )
    return found


def _heads_first(x_THD: Tensor) -> Tensor:
    """View one text as (1, H, T, D)."""
    return x_THD[None].transpose(1, 2)


def _readable(x_BTHD: Tensor) -> Tensor:
    """Copy a tensor whose numbers of a head do not lie beside each other: the kernel takes that for granted."""
    return x_BTHD if x_BTHD.stride(-1) == 1 else x_BTHD.contiguous()
