"""Sparse attention in pure PyTorch: query blocks against gathered key blocks, global tokens apart.

Each block of queries attends to the keys near it that its layout names and to the shared columns (global keys). Rows
(global queries) are a second, small call over all keys. No n x n tensor exists anywhere; time and memory are linear in
the tokens for patterns with bounds.

On CPUs, windows are views and the columns a part of their own, joined in one softmax (`joined`). Everywhere else, under
dropout and in ONNX graphs, keys, values and columns are copied together (3x the memory of k and v for a window of one
block) and computed in one fused call. In a graph the tokens are a multiple of the block, the layout is a band whose
offsets do not depend on the length, and patterns without bounds are refused (dense serves those).

Shape letters: B batch, H heads, T tokens, D numbers a head; N blocks, Q tokens a block, K gathered keys a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from louver.attention import joined
from louver.attention.cuts import cut
from louver.attention.kernel import fused
from louver.attention.request import Backend, Request
from louver.errors import OptionError
from louver.patterns import Bounds, Full, Pattern, is_length_free

BLOCK = 128
"""Tokens a block of copied keys: 128 beat 64 on CPUs, where the copies and calls cost more than the masked pairs."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which keys each query block reads.

    Attributes:
        band: (blocks to the left, blocks to the right) if neighbours are read, else None.
        table_NW: key block numbers, -1 for none; None for a band.
        columns_C: positions of the shared columns.
        rows_R: positions of the global queries.
        positions_NK: position of every gathered key, local ones first, then the columns; negative ones are no keys.
        mask_NQK: allowed pairs, without regard to the text's length.
    """

    band: tuple[int, int] | None
    table_NW: Tensor | None
    columns_C: Tensor
    rows_R: Tensor
    positions_NK: Tensor
    mask_NQK: Tensor


def _make_plan(pattern: Pattern, length: int, device: torch.device) -> Plan:
    blocks = -(-length // BLOCK)
    bounds = pattern.bounds()
    banded = bounds is not None and bounds.banded
    band = (-(-bounds.left // BLOCK), -(-bounds.right // BLOCK)) if bounds is not None and banded else None
    table_NW: Tensor | None = None
    index_N1 = torch.arange(blocks, device=device)[:, None]
    if not torch.compiler.is_exporting():
        layout = pattern.layout(length, BLOCK)
        # a band is cheaper to read than a table, but it may hold blocks without a pair: `Blocks` reaches farther at
        # one end of its block than at the other
        if band is None or layout.key_blocks.shape[1] < sum(band) + 1:
            bounds = Bounds(0, 0, layout.columns, layout.rows)
            band, table_NW = None, torch.from_numpy(layout.key_blocks).to(device)
    if bounds is None or (table_NW is None and band is None):
        raise OptionError(f"{pattern} is no band, so no graph can gather it at every length; export it dense")
    if table_NW is None:
        assert band is not None
        numbers_NW = index_N1 + torch.arange(-band[0], band[1] + 1, device=device)
    else:
        numbers_NW = torch.where(table_NW < 0, -1, table_NW)
    columns_C = torch.tensor(bounds.columns, device=device, dtype=torch.long)
    rows_R = torch.tensor(bounds.rows, device=device, dtype=torch.long)
    within_Q = torch.arange(BLOCK, device=device)
    local_NK = (numbers_NW[:, :, None] * BLOCK + within_Q).flatten(1)
    queries_NQ1 = (index_N1 * BLOCK + within_Q)[:, :, None]
    mask_NQK = pattern.allows(queries_NQ1, local_NK[:, None, :], length)
    mask_NQK = mask_NQK & ((local_NK >= 0) & (local_NK < length))[:, None, :]
    positions_NK = local_NK
    if bounds.columns:
        is_column_NK = (local_NK[:, :, None] == columns_C).any(-1)
        shared_NQC = pattern.allows(queries_NQ1, columns_C[None, None, :], length)
        shared_NQC = (shared_NQC & (columns_C < length)).expand(blocks, BLOCK, len(bounds.columns))
        mask_NQK = torch.cat([mask_NQK & ~is_column_NK[:, None, :], shared_NQC], -1)
        positions_NK = torch.cat([local_NK, columns_C.expand(blocks, -1)], 1)
    return Plan(band, table_NW, columns_C, rows_R, positions_NK, mask_NQK)


# Few entries: the mask of a window of one block takes 384 bytes a token.
_kept_plan = lru_cache(maxsize=16)(_make_plan)


def _plan(request: Request, blocks: int) -> Plan:
    """Return the plan that an earlier layer, or an earlier call of this length, made."""
    pattern, device = request.pattern, request.q_BHTD.device
    length = blocks * BLOCK if is_length_free(pattern) else request.q_BHTD.shape[2]
    if not torch.compiler.is_compiling():
        return _kept_plan(pattern, length, device)
    if request.padding is None:
        return _make_plan(pattern, length, device)
    return request.padding.keep((pattern, "plan"), lambda: _make_plan(pattern, length, device))


def _mask(plan: Plan, batch: int, tokens: int, missing: bool, lengths_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mask (B·N, 1, Q, K) with padding in it, and its rows (B·N, 1, Q, 1) that see nothing.

    Those rows are given every key, for a row without any is NaN in some kernels; the caller clears them.
    """
    mask_NQK = plan.mask_NQK
    if lengths_B is None and missing:
        lengths_B = plan.positions_NK.new_full((1,), tokens)
    if lengths_B is not None:
        real_BNK = plan.positions_NK < lengths_B[:, None, None]
        mask_BNQK = mask_NQK & real_BNK[:, :, None, :]
        mask_BNQK = mask_BNQK.expand(batch, *mask_BNQK.shape[1:])
    else:
        mask_BNQK = mask_NQK.expand(batch, *mask_NQK.shape)
    blind_BNQ1 = ~mask_BNQK.any(-1, keepdim=True)
    return (mask_BNQK | blind_BNQ1).flatten(0, 1)[:, None], blind_BNQ1.flatten(0, 1)[:, None]


def _gather(x_BNQHD: Tensor, x_BTHD: Tensor, plan: Plan) -> Tensor:
    """Copy each block's keys (or values) together: (B·N, H, K, D)."""
    batch, blocks = x_BNQHD.shape[:2]
    if plan.band is not None:
        left, right = plan.band
        padded = pad(x_BNQHD, (0, 0, 0, 0, 0, 0, left, right))
        pieces = [padded.narrow(1, offset, blocks) for offset in range(left + right + 1)]
    else:
        assert plan.table_NW is not None
        pieces = [x_BNQHD.index_select(1, column_N) for column_N in plan.table_NW.clamp(min=0).unbind(1)]
    if len(plan.columns_C):
        shared_BCHD = x_BTHD.index_select(1, plan.columns_C.clamp(max=x_BTHD.shape[1] - 1))
        pieces.append(shared_BCHD[:, None].expand(-1, blocks, -1, -1, -1))
    gathered = torch.cat(pieces, 2)
    return gathered.reshape(batch * blocks, *gathered.shape[2:]).transpose(1, 2)


def refusal(request: Request) -> str | None:
    """Say what cannot be gathered."""
    if isinstance(request.pattern, Full):
        return "has nothing to leave out of full attention"
    bounds = request.pattern.bounds()
    if bounds is not None and bounds.stride and not joined.available(request.q_BHTD, request.dropout):
        return "reads strides only on CPUs, in float32 or bfloat16, without dropout"
    return None


def compute(request: Request) -> tuple[Tensor, None]:
    """Compute the allowed pairs block by block; see the module's text."""
    if joined.available(request.q_BHTD, request.dropout):
        return _by_pieces(request), None
    out_BHTD, rows_R = _by_copies(request)
    return (_with_rows(out_BHTD, request, rows_R) if len(rows_R) else out_BHTD), None


def _by_pieces(request: Request) -> Tensor:
    """Compute windows as views and columns apart, in one softmax; for kernels that return their log-sum-exp."""
    batch, _, tokens, _ = request.q_BHTD.shape
    lengths = [tokens] * batch if request.padding is None else request.padding.lengths_B.tolist()
    dtype, device = request.q_BHTD.dtype, request.q_BHTD.device
    cuts = [cut(request.pattern, length, dtype, device) for length in lengths]
    q_BTHD, k_BTHD, v_BTHD = (x.transpose(1, 2) for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD))
    return joined.joined(q_BTHD, k_BTHD, v_BTHD, cuts, request.scale).transpose(1, 2)


def _by_copies(request: Request) -> tuple[Tensor, Tensor]:
    """Copy each block's keys together, columns among them; for every device, for dropout and for ONNX."""
    q_BHTD, k_BHTD, v_BHTD = request.q_BHTD, request.k_BHSD, request.v_BHSD
    batch, heads, tokens, width = q_BHTD.shape
    exporting = torch.compiler.is_exporting()
    blocks = tokens // BLOCK if exporting else -(-tokens // BLOCK)
    plan = _plan(request, blocks)
    if not plan.positions_NK.shape[1]:  # nothing near, and no column that this text has: zeros, with a gradient
        every = torch.ones((), dtype=torch.bool, device=v_BHTD.device)
        return (q_BHTD + k_BHTD + v_BHTD).masked_fill(every, 0.0), plan.rows_R

    missing = 0 if exporting else blocks * BLOCK - tokens
    q_BTHD, k_BTHD, v_BTHD = (
        pad(x.transpose(1, 2), (0, 0, 0, 0, 0, missing)) if missing else x.transpose(1, 2)
        for x in (q_BHTD, k_BHTD, v_BHTD)
    )
    split = (batch, blocks, BLOCK, heads, width)
    keys = _gather(k_BTHD.reshape(split), k_BTHD, plan)
    values = _gather(v_BTHD.reshape(split), v_BTHD, plan)
    queries = q_BTHD.reshape(batch * blocks, BLOCK, heads, width).transpose(1, 2)

    if request.padding is not None:
        mask, blind = request.padding.keep(
            (request.pattern, "mask"), lambda: _mask(plan, batch, tokens, bool(missing), request.lengths_B)
        )
    else:
        mask, blind = _mask(plan, batch, tokens, bool(missing), None)
    out = fused(queries, keys, values, mask, request.scale, request.dropout)
    out = out.masked_fill(blind, 0.0)
    out_BHTD = out.transpose(1, 2).reshape(batch, blocks * BLOCK, heads, width).transpose(1, 2)
    return (out_BHTD[:, :, :tokens] if missing else out_BHTD), plan.rows_R


def _with_rows(out_BHTD: Tensor, request: Request, rows_R: Tensor) -> Tensor:
    """Replace the rows of global queries by attention over all keys.

    Positions that the text lacks are left out. A graph cannot leave out: there they repeat the first position, and if
    the text lacks that one too, nothing changes.
    """
    tokens = out_BHTD.shape[2]
    there_R = rows_R < tokens
    exporting = torch.compiler.is_exporting()
    if exporting:
        rows_R = torch.where(there_R, rows_R, rows_R[:1].clamp(max=tokens - 1))
    else:
        rows_R = rows_R[there_R]
        if not len(rows_R):
            return out_BHTD
    keys_T = torch.arange(tokens, device=out_BHTD.device)
    mask: Tensor = request.pattern.allows(rows_R[:, None], keys_T[None, :], tokens)
    mask = mask.expand(len(rows_R), tokens)[None]
    if request.lengths_B is not None:
        mask = mask & (keys_T < request.lengths_B[:, None])[:, None, :]
    queries_BHRD = request.q_BHTD.index_select(2, rows_R)
    if not exporting and bool(mask.all()):
        rows_BHRD = fused(queries_BHRD, request.k_BHSD, request.v_BHSD, None, request.scale, request.dropout)
    else:
        blind = ~mask.any(-1, keepdim=True)
        seen = (mask | blind)[:, None]
        rows_BHRD = fused(queries_BHRD, request.k_BHSD, request.v_BHSD, seen, request.scale, request.dropout)
        rows_BHRD = rows_BHRD.masked_fill(blind[:, None], 0.0)
    if exporting:
        rows_BHRD = torch.where(there_R[0], rows_BHRD, out_BHTD.index_select(2, rows_R))
    if exporting or out_BHTD.requires_grad:
        return out_BHTD.index_copy(2, rows_R, rows_BHRD)
    return out_BHTD.index_copy_(2, rows_R, rows_BHRD)  # ours alone, and nobody asks for its gradient


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False, refusal=refusal)
