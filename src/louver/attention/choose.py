"""Which backend computes a call: the table of them, what ``impl="auto"`` takes, and why.

Adding a backend is one file and one line in `BACKENDS`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import torch

from louver.attention import chunked, cost, cuts, dense, flash, flex, gathered, joined, lowrank, reference, selected
from louver.attention.request import Backend, Request
from louver.patterns import Approximation, Full, Pattern, Selector, holds

BACKENDS: dict[str, Backend] = {
    "reference": reference.BACKEND,
    "dense": dense.BACKEND,
    "gathered": gathered.BACKEND,
    "chunked": chunked.BACKEND,
    "flex": flex.BACKEND,
    "flash": flash.BACKEND,
    "selected": selected.BACKEND,
    "lowrank": lowrank.BACKEND,
}

EXPORT_LIMIT: ContextVar[int | None] = ContextVar("EXPORT_LIMIT", default=None)
"""Tokens that the graph being exported reads at most; the cost model's length while a trace has none."""

_DENSE_UP_TO = 1024
"""Exported graphs that read no more than this are dense: they then take every length, not multiples of a block."""

_ALWAYS_DENSE = 256
"""Tokens under which `auto` does not even count pairs."""

_COPIED_PAIR_COST = 2.5
"""Time of a pair over that of another one where `gathered` copies keys (tables of blocks; dropout, other dtypes);
measured on CPUs. It stands for GPUs too until `flex` has been measured on one; then that is what `auto` should take
there."""


@dataclass(frozen=True)
class Choice:
    """A backend's name and the reason for it."""

    impl: str
    reason: str


def choose(request: Request) -> Choice:
    """Say which backend ``impl="auto"`` takes for a request, and why."""
    tokens = request.q_BHTD.shape[2]
    if holds(request.pattern, Selector):
        return Choice("selected", "keys are chosen by content")
    if isinstance(request.pattern, Approximation):
        return Choice("lowrank", "an approximation of all pairs")
    if request.return_weights:
        if request.weights_of is not None:
            return Choice("chunked", "returns weights of some heads in bounded memory")
        return Choice("reference", "returns all weights")
    if isinstance(request.pattern, Full):
        return Choice("dense", "every pair is allowed")
    if request.mask_BHTS is not None or request.documents is not None:
        return Choice("dense", "only dense takes a general mask")
    if torch.compiler.is_exporting():
        return choose_for_export(request.pattern, EXPORT_LIMIT.get())
    if tokens < _ALWAYS_DENSE:
        return Choice("dense", f"under {_ALWAYS_DENSE} tokens a call is too short to save anything")
    bounds = request.pattern.bounds()
    if bounds is None or bounds.left + bounds.right >= tokens:
        return Choice("dense", "no band that leaves out most of the text")
    refused = gathered.refusal(request)
    if refused is not None or not joined.available(request.q_BHTD, request.dropout):
        pairs = request.pattern.layout(tokens, gathered.BLOCK).computed_pairs
        pays = refused is None and pairs * _COPIED_PAIR_COST < tokens**2
        return Choice("gathered" if pays else "dense", f"{pairs:,} copied pairs against {tokens**2:,}")
    return _cheaper(request.pattern, tokens, request.q_BHTD.shape[1], request.q_BHTD.shape[3], cost.rates())


@lru_cache(maxsize=1024)
def _cheaper(pattern: Pattern, tokens: int, heads: int, head_dim: int, rates: cost.Rates) -> Choice:
    """Hold the predicted time of `gathered` against that of `dense` with the same mask, on a CPU."""
    sparse, full = predicted(pattern, tokens, heads, head_dim, rates)
    pairs = cuts.cut(pattern, tokens, torch.float32, torch.device("cpu")).pairs
    reason = f"{pairs:,} of {tokens**2:,} pairs: about {sparse:.2f} ms a text against {full:.2f}"
    return Choice("gathered" if sparse < full else "dense", reason)


def predicted(pattern: Pattern, tokens: int, heads: int, head_dim: int, rates: cost.Rates) -> tuple[float, float]:
    """Return the milliseconds that `gathered` and `dense` should take for one text on a CPU."""
    whole = cuts.cut(pattern, tokens, torch.float32, torch.device("cpu"))
    pairs = whole.pairs + (_COPIED_PAIR_COST - 1) * whole.copied_pairs
    sparse = heads * pairs * rates.gathered_pair(head_dim) + len(whole.pieces) * rates.piece
    return sparse / 1e6, heads * tokens**2 * rates.dense_pair(head_dim) / 1e6


def choose_for_export(pattern: Pattern, limit: int | None) -> Choice:
    """Say which backend goes into a graph for every length up to `limit`."""
    if isinstance(pattern, Full):
        return Choice("dense", "every pair is allowed")
    bounds = pattern.bounds()
    if bounds is None or not bounds.banded:
        return Choice("dense", "no band that holds at every length")
    if limit is not None and limit <= _DENSE_UP_TO:
        return Choice("dense", f"reads {limit} tokens at most")
    return Choice("gathered", "bounded at every length")
