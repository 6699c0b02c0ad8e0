"""Attention over keys that queries choose by content: `TopK` and `Lsh`, exact over what was chosen.

The choice itself has no gradient; queries, keys and values do. Padding is never chosen, and `& pattern` takes away
pairs, and for `TopK` whole blocks before they are chosen.

Shape letters: B batch, H heads, T tokens, D numbers a head; N blocks of tokens, Q tokens a block, W blocks chosen,
C chunks of sorted queries, M queries a chunk, K sorted keys a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from louver.attention.kernel import Sight, fused_masked
from louver.attention.request import Backend, Request
from louver.patterns import Full, Intersection, Lsh, Pattern, Selector, TopK
from louver.patterns.hashing import hashed

_GATHERED = 1 << 22
"""Numbers of keys that are copied together at a time."""


def split(pattern: Pattern) -> tuple[Selector | None, Pattern]:
    """Return the selector of a pattern and what it is met with."""
    if isinstance(pattern, Selector):
        return pattern, Full()
    if isinstance(pattern, Intersection):
        found = [part for part in pattern.members if isinstance(part, Selector)]
        rest = [part for part in pattern.members if not isinstance(part, Selector)]
        if len(found) == 1:
            return found[0], rest[0] if len(rest) == 1 else Intersection(tuple(rest))
    return None, pattern


def refusal(request: Request) -> str | None:
    """Say why there is nothing to choose."""
    selector, rest = split(request.pattern)
    if selector is None:
        return "chooses by content; give one topk(…) or lsh(…), alone or met with patterns by &"
    if isinstance(selector, Lsh) and _looks_back(rest):
        return "sorts whole texts in lsh(…), so that later tokens move what earlier ones see; give topk(…) & causal"
    return None


def compute(request: Request) -> tuple[Tensor, None]:
    """Choose, then attend."""
    selector, rest = split(request.pattern)
    if isinstance(selector, TopK):
        return _top_k(request, selector, rest), None
    assert isinstance(selector, Lsh)
    return _lsh(request, selector, rest), None


@lru_cache(maxsize=16)
def _projection(width: int, rank: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (D, rank) orthonormal columns, the same ones forever."""
    generator = torch.Generator().manual_seed(width)
    found = torch.linalg.qr(torch.randn(width, min(rank, width), generator=generator, dtype=torch.float64)).Q
    projection: Tensor = found.to(device, dtype)
    return projection


@torch.no_grad()
def chosen_blocks(request: Request, selector: TopK, rest: Pattern) -> Tensor:
    """Return the numbers of the key blocks that each query block reads, (B, H, N, W); -1 for none."""
    batch, heads, tokens, width = request.q_BHTD.shape
    size = selector.block
    count = -(-tokens // size)
    real_BT = _real(request)
    real_BNQ = pad(real_BT, (0, count * size - tokens)).view(batch, count, size)
    projection = _projection(width, selector.rank, request.q_BHTD.device, torch.float32)

    def predicted(x_BHTD: Tensor) -> Tensor:
        """Return each block's mean over real tokens, projected: (B, H, N, rank)."""
        filled = pad(x_BHTD.float(), (0, 0, 0, count * size - tokens)).view(batch, heads, count, size, width)
        weights = real_BNQ[:, None, :, :, None].float()
        return ((filled * weights).sum(3) / weights.sum(3).clamp(min=1)) @ projection

    if _looks_back(rest):  # a choice that knew the block's later queries would show them to its earlier ones
        asked_BHNR = pad(request.q_BHTD.float(), (0, 0, 0, count * size - tokens))[:, :, ::size] @ projection
    else:
        asked_BHNR = predicted(request.q_BHTD)
    scores_BHNN = asked_BHNR @ predicted(request.k_BHSD).transpose(-1, -2)
    open_NN = _open_blocks(rest, tokens, size).to(scores_BHNN.device)
    scores_BHNN = scores_BHNN.masked_fill(torch.eye(count, dtype=torch.bool, device=scores_BHNN.device), float("inf"))
    closed_BHNN = ~(open_NN & real_BNQ.any(-1)[:, None, None, :])
    scores_BHNN = scores_BHNN.masked_fill(closed_BHNN, float("-inf"))
    found = scores_BHNN.topk(min(selector.k // size, count), dim=-1)
    return torch.where(found.values == float("-inf"), -1, found.indices)


def _looks_back(rest: Pattern) -> bool:
    """Say whether queries see nothing that comes after them, but for what all of them see."""
    bounds = rest.bounds()
    return bounds is not None and bounds.right <= 0


def _open_blocks(rest: Pattern, tokens: int, size: int) -> Tensor:
    """Return which pairs of blocks hold a pair that `rest` allows: (N, N)."""
    count = -(-tokens // size)
    found = torch.zeros(count, count, dtype=torch.bool)
    if isinstance(rest, Full):
        return ~found
    layout = rest.layout(tokens, size)
    table = torch.from_numpy(layout.key_blocks)
    rows = torch.arange(count)[:, None].expand_as(table)
    found[rows[table >= 0], table[table >= 0]] = True
    found[:, [c // size for c in layout.columns]] = True
    found[[r // size for r in layout.rows]] = True
    return found | bool(layout.stride)


def _real(request: Request) -> Tensor:
    batch, _, tokens, _ = request.q_BHTD.shape
    if request.padding is None:
        return torch.ones(batch, tokens, dtype=torch.bool, device=request.q_BHTD.device)
    return request.padding.mask_BT


def _top_k(request: Request, selector: TopK, rest: Pattern) -> Tensor:
    batch, heads, tokens, width = request.q_BHTD.shape
    size = selector.block
    numbers_BHNW = chosen_blocks(request, selector, rest)
    count, chosen = numbers_BHNW.shape[2:]
    missing = count * size - tokens
    blocks = [
        pad(x, (0, 0, 0, missing)).reshape(batch * heads, count, size, width)
        for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD)
    ]
    q, k, v = blocks
    real_BT = pad(_real(request), (0, missing))
    outs = []
    group = max(1, _GATHERED // (batch * heads * chosen * size * width))
    for start in range(0, count, group):
        stop = min(start + group, count)
        numbers = numbers_BHNW[:, :, start:stop]
        flat = numbers.clamp(min=0).reshape(batch * heads, -1, 1, 1).expand(-1, -1, size, width)
        keys, values = (
            x.gather(1, flat).reshape(batch * heads * (stop - start), 1, chosen * size, width) for x in (k, v)
        )
        places = numbers[..., None] * size + torch.arange(size, device=numbers.device)
        places = places.flatten(-2)  # (B, H, N, K), negative where nothing was chosen
        real = real_BT[:, None, None, :].expand(-1, heads, stop - start, -1).gather(3, places.clamp(min=0))
        queries_N = torch.arange(start * size, stop * size, device=numbers.device).view(stop - start, size)
        allowed = rest.allows(queries_N[None, None, :, :, None], places[..., None, :], tokens)
        mask = (allowed & (real & (places >= 0))[..., None, :]).expand(batch, heads, stop - start, size, -1)
        found = fused_masked(
            q[:, start:stop].reshape(-1, 1, size, width),
            keys,
            values,
            Sight.of(mask.reshape(-1, 1, size, chosen * size)),
            request.scale,
            request.dropout,
        )
        outs.append(found.view(batch, heads, (stop - start) * size, width))
    return torch.cat(outs, 2)[:, :, :tokens]


@dataclass(frozen=True, eq=False)
class Round:
    """One hashing of queries and keys, sorted by bucket.

    Attributes:
        query_bucket_BHT: each query's bucket.
        key_bucket_BHT: each key's; padding has one of its own that no query has.
        queries_BHCM: numbers of the queries of each chunk, in the order of buckets; the last may come again.
        keys_BHCK: numbers of the keys that each chunk sees; the last may come again.
        there_BHCK: whether the key is one.
        start_BHT: where the sorted keys of each query's chunk begin.
        place_BHT: each key's place among the sorted ones.
    """

    query_bucket_BHT: Tensor
    key_bucket_BHT: Tensor
    queries_BHCM: Tensor
    keys_BHCK: Tensor
    there_BHCK: Tensor
    start_BHT: Tensor
    place_BHT: Tensor


@torch.no_grad()
def hashed_round(request: Request, selector: Lsh, number: int) -> Round:
    """Hash and sort once (Kitaev et al. 2020, section 2, with a key's own hash beside the query's)."""
    tokens, width = request.q_BHTD.shape[2:]
    generator = torch.Generator().manual_seed(int(hashed(selector.seed, np.asarray(number), np.asarray(0))))
    turns = torch.randn(width, selector.buckets // 2, generator=generator).to(request.q_BHTD.device)

    def buckets(x_BHTD: Tensor) -> Tensor:
        turned = x_BHTD.float() @ turns
        return torch.cat([turned, -turned], -1).argmax(-1)

    # padding comes last, in a bucket of its own: else it would move the chunks of what is real
    query_bucket, key_bucket = (
        buckets(x).masked_fill(~_real(request)[:, None], selector.buckets) for x in (request.q_BHTD, request.k_BHSD)
    )
    query_order, key_order = (torch.argsort(bucket, dim=-1, stable=True) for bucket in (query_bucket, key_bucket))
    size = selector.width
    chunks = -(-tokens // size)
    queries = pad(query_order, (0, chunks * size - tokens)).view(*query_order.shape[:2], chunks, size)
    queries[..., -1, size - (chunks * size - tokens) :] = query_order[..., -1:]
    first_bucket = query_bucket.gather(-1, queries[..., 0])
    start = torch.searchsorted(key_bucket.gather(-1, key_order), first_bucket)
    sorted_places = start[..., None] + torch.arange(2 * size, device=start.device)
    keys = key_order.gather(-1, sorted_places.clamp(max=tokens - 1).flatten(-2)).view_as(sorted_places)
    chunk_of = torch.empty_like(query_order).scatter_(
        -1,
        query_order,
        torch.arange(tokens, device=start.device).div(size, rounding_mode="floor").expand_as(query_order),
    )
    place = torch.empty_like(key_order).scatter_(
        -1, key_order, torch.arange(tokens, device=start.device).expand_as(key_order)
    )
    return Round(query_bucket, key_bucket, queries, keys, sorted_places < tokens, start.gather(-1, chunk_of), place)


def _lsh(request: Request, selector: Lsh, rest: Pattern) -> Tensor:
    rounds = [hashed_round(request, selector, number) for number in range(selector.rounds)]
    found = [_one_round(request, rounds, number, rest) for number in range(selector.rounds)]
    lse_RBHT = torch.stack([lse for _, lse in found])
    total_BHT = lse_RBHT.logsumexp(0)
    nothing_BHT = total_BHT == float("-inf")
    shares_RBHT = (lse_RBHT - total_BHT.masked_fill(nothing_BHT, 0.0)).exp()
    out_BHTD = sum(share[..., None].to(out.dtype) * out for share, (out, _) in zip(shares_RBHT, found, strict=True))
    assert isinstance(out_BHTD, Tensor)
    return out_BHTD.masked_fill(nothing_BHT[..., None], 0.0)


def _one_round(request: Request, rounds: list[Round], number: int, rest: Pattern) -> tuple[Tensor, Tensor]:
    """Return one round's output (B, H, T, D) and log-sum-exp (B, H, T), each pair shared by the rounds that find it."""
    batch, heads, tokens, width = request.q_BHTD.shape
    own = rounds[number]
    chunks, size = own.queries_BHCM.shape[2:]
    pick_queries = own.queries_BHCM.flatten(2)
    pick_keys = own.keys_BHCK.flatten(2)

    def of_queries(x_BHT: Tensor) -> Tensor:
        return x_BHT.gather(2, pick_queries).view(batch, heads, chunks, size, 1)

    def of_keys(x_BHT: Tensor) -> Tensor:
        return x_BHT.gather(2, pick_keys).view(batch, heads, chunks, 1, 2 * size)

    times = torch.zeros(batch, heads, chunks, size, 2 * size, dtype=torch.int8, device=request.q_BHTD.device)
    for other in rounds:
        reach = of_keys(other.place_BHT) - of_queries(other.start_BHT)
        same = of_queries(other.query_bucket_BHT) == of_keys(other.key_bucket_BHT)
        times += same & (reach >= 0) & (reach < 2 * size)
    allowed = of_queries(own.query_bucket_BHT) == of_keys(own.key_bucket_BHT)
    allowed = allowed & own.there_BHCK[..., None, :]
    allowed = allowed & rest.allows(own.queries_BHCM[..., None], own.keys_BHCK[..., None, :], tokens)

    def rows(x_BHTD: Tensor, pick: Tensor, each: int) -> Tensor:
        return x_BHTD.gather(2, pick[..., None].expand(-1, -1, -1, width)).view(batch, heads, chunks, each, width)

    q, k, v = (
        rows(request.q_BHTD, pick_queries, size),
        rows(request.k_BHSD, pick_keys, 2 * size),
        rows(request.v_BHSD, pick_keys, 2 * size),
    )
    scores = (q.float() @ k.float().transpose(-1, -2)) * request.scale - times.clamp(min=1).float().log()
    blind = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~(allowed | blind), float("-inf"))
    lse = scores.logsumexp(-1).masked_fill(blind[..., 0], float("-inf"))
    weights = torch.nn.functional.dropout(scores.softmax(-1).masked_fill(blind, 0.0), request.dropout)
    found = (weights.to(v.dtype) @ v).flatten(2, 3)
    # the last query may stand several times in the last chunk: its first row counts
    back = torch.empty(batch, heads, tokens, dtype=torch.long, device=found.device)
    index = torch.arange(chunks * size, device=found.device)[:tokens]
    back.scatter_(2, pick_queries[..., :tokens], index.expand(batch, heads, -1))
    out = found.gather(2, back[..., None].expand(-1, -1, -1, width))
    return out, lse.flatten(2).gather(2, back)


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False, refusal=refusal)
