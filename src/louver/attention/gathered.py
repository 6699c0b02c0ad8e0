"""Sparse attention in pure PyTorch: query blocks against gathered key blocks, global tokens apart.

Each block of queries attends, in one fused call, to the key blocks that its layout names and to the shared columns
(global keys). Rows (global queries) are a second, small call over all keys. No n x n tensor exists anywhere; time and
memory are linear in the tokens for patterns with bounds. The gathered keys and values take `width` times the memory of
k and v (3x for a window of one block), the mask one byte a pair.

The same code is traced for ONNX. There the tokens are a multiple of the block, the layout is a band whose offsets do
not depend on the length, and patterns without bounds are refused (dense serves those).

Shape letters: B batch, H heads, T tokens, D numbers a head; N blocks, Q tokens a block, K gathered keys a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from louver.attention.kernel import fused
from louver.attention.request import Backend, Request
from louver.errors import OptionError
from louver.patterns import Bounds, Full, Pattern

BLOCK = 128
"""Tokens a block: 128 beat 64 on CPUs, where the copies and calls cost more than the masked pairs."""


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
    if missing:
        out_BHTD = out_BHTD[:, :, :tokens]
    return (_with_rows(out_BHTD, request, plan) if len(plan.rows_R) else out_BHTD), None


def _with_rows(out_BHTD: Tensor, request: Request, plan: Plan) -> Tensor:
    """Replace the rows of global queries by attention over all keys.

    Positions that the text lacks are left out. A graph cannot leave out: there they repeat the first position, and if
    the text lacks that one too, nothing changes.
    """
    tokens = out_BHTD.shape[2]
    there_R = plan.rows_R < tokens
    if torch.compiler.is_exporting():
        rows_R = torch.where(there_R, plan.rows_R, plan.rows_R[:1].clamp(max=tokens - 1))
    else:
        rows_R = plan.rows_R[there_R]
        if not len(rows_R):
            return out_BHTD
    keys_T = torch.arange(tokens, device=out_BHTD.device)
    mask: Tensor = request.pattern.allows(rows_R[:, None], keys_T[None, :], tokens)
    mask = mask.expand(len(rows_R), tokens)[None]
    if request.lengths_B is not None:
        mask = mask & (keys_T < request.lengths_B[:, None])[:, None, :]
    blind = ~mask.any(-1, keepdim=True)
    rows_BHRD = fused(
        request.q_BHTD.index_select(2, rows_R),
        request.k_BHSD,
        request.v_BHSD,
        (mask | blind)[:, None],
        request.scale,
        request.dropout,
    ).masked_fill(blind[:, None], 0.0)
    rows_BHRD = torch.where(there_R[0], rows_BHRD, out_BHTD.index_select(2, rows_R))
    return out_BHTD.index_copy(2, rows_R, rows_BHRD)


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False)
