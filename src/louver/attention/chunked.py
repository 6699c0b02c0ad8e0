"""Exact attention in bounded memory: a chunk of queries at a time, computed anew in the backward pass.

Every pattern, general mask, device and dtype. Memory is one chunk's scores, O(chunk · S) (Rabe & Staats 2021); time is
that of dense attention, less where a pattern's band leaves keys out. Chosen heads' weights come back on request.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head; C queries of a chunk, W heads whose
weights are wanted.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from louver.attention.kernel import Sight, fused_masked
from louver.attention.masks import meet, row_length
from louver.attention.request import Backend, Request
from louver.patterns import Full

CHUNK = 512
"""Queries a chunk."""


def compute(request: Request) -> tuple[Tensor, Tensor | None]:
    """Compute chunk by chunk; what a chunk needs for its gradients is computed again, not kept."""
    tokens = request.q_BHTD.shape[2]
    outs = []
    for start in range(0, tokens, CHUNK):
        stop = min(start + CHUNK, tokens)
        inputs = request.q_BHTD[:, :, start:stop], request.k_BHSD, request.v_BHSD
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            outs.append(checkpoint(_chunk, request, start, *inputs, use_reentrant=False))
        else:
            outs.append(_chunk(request, start, *inputs))
    out_BHTD = torch.cat(outs, 2) if outs else torch.zeros_like(request.q_BHTD)
    return out_BHTD, _weights(request) if request.return_weights else None


def _chunk(request: Request, start: int, q_BHCD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
    """Attend from some queries to the keys that their band and their columns hold."""
    stop = start + q_BHCD.shape[2]
    apart, first, last = _reach(request, start, stop)
    k_BHSD, v_BHSD = (
        torch.cat([x[:, :, apart], x[:, :, first:last]], 2) if apart else x[:, :, first:last] for x in (k_BHSD, v_BHSD)
    )
    keys_S = torch.arange(first, last, device=q_BHCD.device)
    if apart:
        keys_S = torch.cat([torch.tensor(apart, device=q_BHCD.device), keys_S])
    mask = _mask(request, start, stop, keys_S)
    sight = None if mask is None else Sight.of(mask)
    return fused_masked(q_BHCD, k_BHSD, v_BHSD, sight, request.scale, request.dropout)


def _reach(request: Request, start: int, stop: int) -> tuple[list[int], int, int]:
    """Return the keys that these queries may see: columns that lie apart, and where a stretch starts and stops."""
    keys = request.k_BHSD.shape[2]
    bounds = request.pattern.bounds()
    if bounds is None or not bounds.banded or any(start <= row < stop for row in bounds.rows):
        return [], 0, keys
    first, last = max(0, start - bounds.left), min(keys, stop + bounds.right)
    return [c for c in bounds.columns if c < keys and not first <= c < last], first, last


def _mask(request: Request, start: int, stop: int, keys_S: Tensor) -> Tensor | None:
    """Return the mask of some queries and some keys; None if every pair is allowed."""
    parts: list[Tensor] = []
    if not isinstance(request.pattern, Full):
        queries_C = torch.arange(start, stop, device=keys_S.device)
        inside: Tensor = request.pattern.allows(queries_C[:, None], keys_S[None, :], row_length(request))
        parts.append(inside.expand(stop - start, len(keys_S))[None, None])
    if request.lengths_B is not None:
        parts.append((keys_S < request.lengths_B[:, None])[:, None, None])
    if request.mask_BHTS is not None:
        same = request.mask_BHTS.shape[2] == 1  # one row for all queries: left padding
        parts.append(request.mask_BHTS[:, :, slice(None) if same else slice(start, stop)][..., keys_S])
    return meet(parts)


@torch.no_grad()
def _weights(request: Request) -> Tensor:
    """Return the softmax weights of the wanted heads, (B, W, T, S)."""
    heads = request.weights_of
    index = slice(None) if heads is None else list(heads)
    chosen = replace(
        request,
        q_BHTD=request.q_BHTD[:, index],
        k_BHSD=request.k_BHSD[:, index],
        v_BHSD=request.v_BHSD[:, index],
        mask_BHTS=_heads_of(request.mask_BHTS, index),
    )
    tokens = request.q_BHTD.shape[2]
    keys_S = torch.arange(request.k_BHSD.shape[2], device=request.k_BHSD.device)
    rows = []
    for start in range(0, tokens, CHUNK):
        stop = min(start + CHUNK, tokens)
        scores_BWCS = chosen.q_BHTD[:, :, start:stop].float() @ chosen.k_BHSD.float().transpose(-1, -2) * request.scale
        mask = _mask(chosen, start, stop, keys_S)
        if mask is None:
            rows.append(scores_BWCS.softmax(-1))
            continue
        blind = ~mask.any(-1, keepdim=True)
        scores_BWCS = scores_BWCS.masked_fill(~(mask | blind), float("-inf"))
        rows.append(scores_BWCS.softmax(-1).masked_fill(blind, 0.0))
    return torch.cat(rows, 2)


def _heads_of(mask_BHTS: Tensor | None, index: slice | list[int]) -> Tensor | None:
    return mask_BHTS if mask_BHTS is None or mask_BHTS.shape[1] == 1 else mask_BHTS[:, index]


BACKEND = Backend(compute, any_mask=True, documents=False, weights=True)
