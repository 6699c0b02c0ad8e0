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
from louver.attention.kernel import UNSEEN, fused
from louver.attention.request import Backend, Request
from louver.errors import OptionError
from louver.patterns import Bounds, Full, Pattern

BLOCK = 128
"""Tokens a block of copied keys: 128 beat 64 on CPUs, where the copies and calls cost more than the masked pairs."""

QUERIES = 64
"""Queries a block where keys are views: less than half of a window's block is masked, and the kernel still has work."""


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


def _make_plan(pattern: Pattern, blocks: int, device: torch.device) -> Plan:
    bounds = pattern.bounds()
    band = None if bounds is None else (-(-bounds.left // BLOCK), -(-bounds.right // BLOCK))
    table_NW: Tensor | None = None
    index_N1 = torch.arange(blocks, device=device)[:, None]
    if not torch.compiler.is_exporting():
        layout = pattern.layout(blocks * BLOCK, BLOCK)
        # a band is cheaper to read than a table, but it may hold blocks without a pair: `Blocks` reaches farther at
        # one end of its block than at the other
        if band is None or layout.key_blocks.shape[1] < sum(band) + 1:
            bounds = Bounds(0, 0, layout.columns, layout.rows)
            band, table_NW = None, torch.from_numpy(layout.key_blocks).to(device)
    if bounds is None:
        raise OptionError(f"{pattern} has no bounds, so no graph can gather it at every length; export it dense")
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
    mask_NQK = pattern.allows(queries_NQ1, local_NK[:, None, :], blocks * BLOCK)
    mask_NQK = mask_NQK & ((local_NK >= 0) & (local_NK < blocks * BLOCK))[:, None, :]
    positions_NK = local_NK
    if bounds.columns:
        is_column_NK = (local_NK[:, :, None] == columns_C).any(-1)
        shared_NQC = pattern.allows(queries_NQ1, columns_C[None, None, :], blocks * BLOCK)
        shared_NQC = (shared_NQC & (columns_C < blocks * BLOCK)).expand(blocks, BLOCK, len(bounds.columns))
        mask_NQK = torch.cat([mask_NQK & ~is_column_NK[:, None, :], shared_NQC], -1)
        positions_NK = torch.cat([local_NK, columns_C.expand(blocks, -1)], 1)
    return Plan(band, table_NW, columns_C, rows_R, positions_NK, mask_NQK)


# Few entries: the mask of a window of one block takes 384 bytes a token.
_kept_plan = lru_cache(maxsize=16)(_make_plan)


def _plan(request: Request, blocks: int) -> Plan:
    """Return the plan that an earlier layer, or an earlier call of this length, made."""
    pattern, device = request.pattern, request.q_BHTD.device
    if not torch.compiler.is_compiling():
        return _kept_plan(pattern, blocks, device)
    if request.padding is None:
        return _make_plan(pattern, blocks, device)
    return request.padding.keep((pattern, "plan"), lambda: _make_plan(pattern, blocks, device))


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


def compute(request: Request) -> tuple[Tensor, None]:
    """Compute the allowed pairs block by block; see the module's text."""
    if isinstance(request.pattern, Full):
        raise OptionError("impl 'gathered' has nothing to leave out of full attention; use 'dense' or 'auto'")
    if joined.available(request.q_BHTD, request.dropout):
        out_BHTD, rows_R = _by_parts(request)
    else:
        out_BHTD, rows_R = _by_copies(request)
    return (_with_rows(out_BHTD, request, rows_R) if len(rows_R) else out_BHTD), None


@dataclass(frozen=True, eq=False)
class Cut:
    """A pattern cut into parts for texts of one shape.

    Attributes:
        parts: keys near the queries, then the columns if there are any.
        blind_BT: queries that see nothing; None if there are none.
        rows_R: positions of the global queries.
    """

    parts: tuple[joined.Part, ...]
    blind_BT: Tensor | None
    rows_R: Tensor


def _by_parts(request: Request) -> tuple[Tensor, Tensor]:
    """Compute windows as views and columns apart, in one softmax; for kernels that return their log-sum-exp."""
    batch, _, tokens, _ = request.q_BHTD.shape
    missing = -tokens % QUERIES
    q_BTHD, k_BTHD, v_BTHD = (
        pad(x.transpose(1, 2), (0, 0, 0, 0, 0, missing)) if missing else x.transpose(1, 2)
        for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD)
    )
    shape = (request.pattern, batch, tokens, request.q_BHTD.dtype, request.q_BHTD.device)
    if request.padding is None:
        cut = _kept_cut(*shape)
    else:
        cut = request.padding.keep(("cut", *shape), lambda: _cut(*shape, request.lengths_B))
    if not cut.parts:
        return torch.zeros_like(request.v_BHSD), cut.rows_R
    out_BHTD = joined.joined(q_BTHD, k_BTHD, v_BTHD, cut.parts, request.scale)[:, :tokens].transpose(1, 2)
    if cut.blind_BT is not None:
        out_BHTD = out_BHTD.masked_fill(cut.blind_BT[:, None, :, None], 0.0)
    return out_BHTD, cut.rows_R


@torch.inference_mode(False)  # what is kept must serve training too
def _cut(
    pattern: Pattern,
    batch: int,
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    lengths_B: Tensor | None = None,
) -> Cut:
    """Cut a pattern into parts, padding in their masks."""
    blocks = -(-tokens // QUERIES)
    layout = pattern.layout(tokens, QUERIES)
    bounds = pattern.bounds()
    if lengths_B is None:
        lengths_B = torch.full((batch,), tokens, device=device)
    index_N1 = torch.arange(blocks, device=device)[:, None]
    queries_NQ = index_N1 * QUERIES + torch.arange(QUERIES, device=device)
    table_NW: Tensor | None = None
    if bounds is not None and bounds.left + QUERIES + bounds.right <= layout.key_blocks.shape[1] * QUERIES:
        keys_NK = index_N1 * QUERIES + torch.arange(-bounds.left, QUERIES + bounds.right, device=device)
    else:
        table_NW = torch.from_numpy(layout.key_blocks).to(device)
        within_Q = torch.arange(QUERIES, device=device)
        keys_NK = torch.where(table_NW < 0, -tokens, table_NW * QUERIES)[:, :, None].add(within_Q).flatten(1)
    columns_C = torch.tensor(layout.columns, device=device, dtype=torch.long)

    near_NQK = pattern.allows(queries_NQ[:, :, None], keys_NK[:, None, :], tokens) & (keys_NK >= 0)[:, None, :]
    if len(columns_C):
        near_NQK = near_NQK & ~torch.isin(keys_NK, columns_C)[:, None, :]
    near_BNQK = near_NQK & (keys_NK < lengths_B[:, None, None])[:, :, None, :]
    seen_BT = near_BNQK.any(-1).flatten(1)
    near_mask = _additive(near_BNQK.flatten(0, 1)[:, None], dtype)
    parts: list[joined.Part] = []
    if table_NW is None:
        assert bounds is not None
        parts.append(joined.Windows(QUERIES, near_mask, bounds.left, bounds.right))
    elif table_NW.shape[1]:
        parts.append(joined.Table(QUERIES, near_mask, table_NW.clamp(min=0)))
    if len(columns_C):
        far_TC = pattern.allows(queries_NQ.flatten()[:, None], columns_C, tokens)
        far_BTC = (far_TC & (columns_C < lengths_B[:, None])[:, None, :]).expand(batch, -1, len(columns_C))
        seen_BT = seen_BT | far_BTC.any(-1)
        far_mask = None if bool(far_BTC.all()) else _additive(far_BTC[:, None], dtype)
        parts.append(joined.Columns(columns_C, far_mask))
    seen_BT = seen_BT[:, :tokens]
    return Cut(
        tuple(parts),
        None if bool(seen_BT.all()) else ~seen_BT,
        torch.tensor(layout.rows, device=device, dtype=torch.long),
    )


# Few entries: the mask of window(128) takes 1.3 kB a token.
_kept_cut = lru_cache(maxsize=4)(_cut)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(mask, 0.0, UNSEEN).to(dtype)


def _by_copies(request: Request) -> tuple[Tensor, Tensor]:
    """Copy each block's keys together, columns among them; for every device, for dropout and for ONNX."""
    q_BHTD, k_BHTD, v_BHTD = request.q_BHTD, request.k_BHSD, request.v_BHSD
    batch, heads, tokens, width = q_BHTD.shape
    exporting = torch.compiler.is_exporting()
    blocks = tokens // BLOCK if exporting else -(-tokens // BLOCK)
    plan = _plan(request, blocks)

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


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False)
