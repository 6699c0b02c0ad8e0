"""A pattern cut into calls of the fused kernel, for one text of one length.

Queries go in blocks, blocks in chunks whose keys stay in the caches. A chunk reads the keys near it, as overlapping
windows or as a table of blocks, and the shared columns; residue classes of a stride and global rows are calls of their
own. Blocks with equal masks share one: a window's inner blocks all do.

Shape letters: T tokens of the text; N blocks of a chunk, Q queries a block, K keys a block, C columns, R rows,
P tokens of a residue class.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from louver.attention.joined import Classes, Columns, Cut, Piece, Table, Windows
from louver.attention.kernel import UNSEEN
from louver.patterns import Pattern, is_length_free

QUERIES = 32
"""Queries a block: few of a window's pairs are masked. Of 32, 64 and 128, the fastest forward and no slower back."""

CHUNK = 512
"""Queries a chunk: its keys, values and their gradients stay in the caches."""

_LARGEST = 512
"""Queries a block at most, where a pattern's own blocks ask for more."""

_KEPT_BYTES = 64 << 20
"""Memory for cuts that are kept for the next layer and the next text."""

_SHARED = 3
"""Blocks from which on equal masks are one piece."""


class _Store:
    """The latest cuts, as many as their budget of bytes holds; for any number of threads."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.cuts: OrderedDict[tuple[object, ...], Cut] = OrderedDict()
        self.bytes = 0
        self.lock = Lock()

    def get(self, key: tuple[object, ...]) -> Cut | None:
        with self.lock:
            found = self.cuts.get(key)
            if found is not None:
                self.cuts.move_to_end(key)
            return found

    def put(self, key: tuple[object, ...], made: Cut) -> None:
        with self.lock:
            if key in self.cuts:  # another thread made it meanwhile
                return
            self.cuts[key] = made
            self.bytes += made.bytes
            while self.bytes > self.budget and len(self.cuts) > 1:
                self.bytes -= self.cuts.popitem(last=False)[1].bytes


_kept = _Store(_KEPT_BYTES)


def cut(pattern: Pattern, length: int, dtype: torch.dtype, device: torch.device) -> Cut:
    """Cut a plain pattern for one text; kept for the next call.

    Args:
        pattern: who may attend to whom.
        length: tokens of the text.
        dtype: of the queries, and so of the masks.
        device: of the queries.
    """
    key = (pattern, length, dtype, device)
    found = _kept.get(key)
    if found is None:
        with torch.inference_mode(False):  # what is kept must serve training too
            found = _make(pattern, length, dtype, device)
        _kept.put(key, found)
    return found


@dataclass(frozen=True)
class _Band:
    """How every block of queries reads the keys near it: `left` and `right` tokens beyond the block."""

    size: int
    left: int
    right: int


def _make(pattern: Pattern, length: int, dtype: torch.dtype, device: torch.device) -> Cut:
    size = _block(pattern)
    band, columns, rows, stride = _shape(pattern, length, size)
    columns_C = np.asarray([c for c in columns if c < length], np.int64)
    rows_R = np.asarray([r for r in rows if r < length], np.int64)
    rows_RT = _allowed(pattern, rows_R, np.arange(length), length)
    rows_R, rows_RT = rows_R[rows_RT.any(-1)], rows_RT[rows_RT.any(-1)]

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values)).to(device)  # a copy: cached masks are read-only views

    def additive(mask: np.ndarray) -> Tensor | None:
        """Return (…, Q, K) with a place for heads."""
        if mask.all():
            return None
        return torch.where(tensor(mask)[..., None, :, :], 0.0, UNSEEN).to(dtype)

    seen_T = np.zeros(length, bool)
    seen_T[rows_R] = True
    pieces: list[Piece] = []
    if stride and length:  # first, because it covers the whole text
        classes, class_seen_T = _classes(pattern, length, stride, columns_C)
        pieces.append(Classes(0, length, -(-length // stride), stride, additive(classes)))
        seen_T |= class_seen_T
    for stretch in _stretches(pattern, band, length, size, stride, tuple(columns_C.tolist())):
        start, count = stretch.start * size, stretch.blocks
        stop = min(start + count * size, length)
        any_Q = np.broadcast_to(stretch.mask_NQK.any(-1), (count, size)).reshape(-1)[: stop - start]
        if stretch.mask_NQK.shape[-1] and any_Q.any():
            mask = additive(stretch.mask_NQK)
            if band is not None:
                pieces.append(Windows(start, stop, size, count, mask, band.left, band.right))
            else:
                keys = tensor(stretch.keys_NK.clip(0, length - 1).reshape(-1))
                pieces.append(Table(start, stop, size, count, mask, keys))
            seen_T[start:stop] |= any_Q
        if len(columns_C):
            far_TC = _allowed(pattern, np.arange(start, stop), columns_C, length)
            if far_TC.any():
                pieces.append(Columns(start, stop, stop - start, 1, additive(far_TC[None]), tensor(columns_C)))
                seen_T[start:stop] |= far_TC.any(-1)
    rows_mask = additive(rows_RT[None]) if len(rows_R) else None
    blind = np.flatnonzero(~seen_T)
    return Cut(length, tuple(pieces), tensor(rows_R), rows_mask, tensor(blind))


def _block(pattern: Pattern) -> int:
    """Return the queries a block: the smallest multiple of the pattern's own blocks that gives the kernel work."""
    grain = pattern.grain
    return QUERIES if grain > _LARGEST else grain * -(-QUERIES // grain)


def _shape(pattern: Pattern, length: int, size: int) -> tuple[_Band | None, tuple[int, ...], tuple[int, ...], int]:
    """Return the band of near keys (None: blocks by number), and the columns, the rows and the stride."""
    bounds = pattern.bounds()
    if bounds is not None and bounds.stride >= length:  # no two tokens are so far apart
        bounds = replace(bounds, stride=0)
    if bounds is None or bounds.scattered or bounds.left + bounds.right >= length:
        layout = pattern.layout(length, size)
        return None, layout.columns, layout.rows, layout.stride
    band = _Band(size, bounds.left, bounds.right)
    if pattern.grain == 1:
        # a sample says whether blocks by number would read less
        reach = bounds.left + size + bounds.right
        layout = pattern.layout(min(length, 4 * size * -(-reach // size)), size)
    else:  # such as `Blocks`, which reaches farther at one end of a block than at the other
        layout = pattern.layout(length, size)
        offsets = (layout.key_blocks - np.arange(len(layout.key_blocks))[:, None])[layout.key_blocks >= 0]
        left, right = -int(offsets.min(initial=0)) * size, int(offsets.max(initial=0)) * size
        if left + right < bounds.left + bounds.right:
            band = _Band(size, left, right)
    found = band if band.left + size + band.right <= layout.key_blocks.shape[1] * size else None
    return found, bounds.columns, bounds.rows, bounds.stride


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Consecutive query blocks and their near keys.

    Attributes:
        start: number of the first block.
        blocks: how many.
        keys_NK: positions of the keys; outside the text for none.
        mask_NQK: allowed pairs; one for all blocks, or one each.
    """

    start: int
    blocks: int
    keys_NK: np.ndarray
    mask_NQK: np.ndarray


def _stretches(
    pattern: Pattern, band: _Band | None, length: int, size: int, stride: int, columns: tuple[int, ...]
) -> Iterator[_Stretch]:
    """Cut a text's blocks into stretches whose masks are one, or that are short."""
    blocks, chunk = -(-length // size), max(1, CHUNK // size)
    for first in range(0, blocks, chunk):
        count = min(chunk, blocks - first)
        if band is None:
            yield from _chunk_of_table(pattern, length, size, first, count, stride, columns)
            continue
        last_key = (first + count) * size + band.right
        inside = last_key <= length and is_length_free(pattern)  # then the chunk is the same in every longer text
        yield from _chunk_of_band(pattern, last_key if inside else length, band, first, count, stride, columns)


@lru_cache(maxsize=256)
def _chunk_of_band(
    pattern: Pattern, length: int, band: _Band, first: int, count: int, stride: int, columns: tuple[int, ...]
) -> tuple[_Stretch, ...]:
    numbers_N1 = np.arange(first, first + count)[:, None]
    keys_NK = numbers_N1 * band.size + np.arange(-band.left, band.size + band.right)
    return tuple(_runs(first, keys_NK, _near(pattern, first, band.size, keys_NK, length, stride, columns)))


def _chunk_of_table(
    pattern: Pattern, length: int, size: int, first: int, count: int, stride: int, columns: tuple[int, ...]
) -> Iterator[_Stretch]:
    table_NW = pattern.layout(length, size).key_blocks[first : first + count]
    table_NW = table_NW[:, : int((table_NW >= 0).sum(1).max(initial=0))]
    keys_NK = np.where(table_NW < 0, -length, table_NW * size)[:, :, None] + np.arange(size)
    keys_NK = keys_NK.reshape(count, -1)
    return _runs(first, keys_NK, _near(pattern, first, size, keys_NK, length, stride, columns))


def _near(
    pattern: Pattern, first: int, size: int, keys_NK: np.ndarray, length: int, stride: int, columns: tuple[int, ...]
) -> np.ndarray:
    """Return which near pairs are allowed and belong to no column and no residue class: (N, Q, K)."""
    count = len(keys_NK)
    queries_NQ1 = (np.arange(first, first + count)[:, None] * size + np.arange(size))[:, :, None]
    keys_N1K = keys_NK[:, None, :]
    allowed = pattern.allows(queries_NQ1, keys_N1K, length)
    allowed = allowed & (keys_N1K >= 0) & (keys_N1K < length)
    if columns:
        allowed = allowed & ~np.isin(keys_NK, columns)[:, None, :]
    if stride:
        allowed = allowed & ((queries_NQ1 - keys_N1K) % stride != 0)
    return np.asarray(np.broadcast_to(allowed, (count, size, keys_NK.shape[1])))


def _runs(first: int, keys_NK: np.ndarray, mask_NQK: np.ndarray) -> Iterator[_Stretch]:
    """Split blocks where many neighbours in a row have one mask."""
    count = len(mask_NQK)
    same = np.concatenate([[False], (mask_NQK[1:] == mask_NQK[:-1]).all((1, 2)), [False]])
    starts = np.flatnonzero(~same).tolist()
    long = [(a, b) for a, b in pairwise(starts) if b - a >= _SHARED]
    place = 0
    for start, stop in [*long, (count, count)]:
        if start > place:
            yield _Stretch(first + place, start - place, keys_NK[place:start], mask_NQK[place:start])
        if stop > start:
            yield _Stretch(first + start, stop - start, keys_NK[start:stop], mask_NQK[start : start + 1])
        place = stop


def _classes(pattern: Pattern, length: int, stride: int, columns_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which pairs of each residue class are allowed, (stride | 1, P, P), and which tokens see one."""
    size = -(-length // stride)
    members_SP = np.arange(stride)[:, None] + np.arange(size) * stride
    queries, keys = members_SP[:, :, None], members_SP[:, None, :]
    allowed = np.broadcast_to(pattern.allows(queries, keys, length) & (keys < length), (stride, size, size))
    if len(columns_C):
        allowed = allowed & ~np.isin(keys, columns_C)
    seen_T = allowed.any(-1).T.reshape(-1)[:length]
    alike = bool((allowed[1:] == allowed[:-1]).all())
    return np.asarray(allowed[:1] if alike else allowed), seen_T


def _allowed(pattern: Pattern, queries: np.ndarray, keys: np.ndarray, length: int) -> np.ndarray:
    mask = pattern.allows(queries[:, None], keys[None, :], length)
    return np.asarray(np.broadcast_to(mask, (len(queries), len(keys))))
