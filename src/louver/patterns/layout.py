"""From pairs to blocks: which key blocks a query block has to read.

A `Layout` keeps sparse things sparse: local blocks as a small table, global tokens as single columns and rows instead
of whole blocks, strides as residue classes, and dense patterns as no table at all. For a pattern with bounded
`Pattern.bounds` it takes O(n) time and memory; without, O(n²) time and still O(n) memory for the table of a bounded
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from louver.patterns.base import Bounds, Pattern
from louver.patterns.full import Full


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the allowed pairs of a plain pattern lie.

    Attributes:
        pattern: the plain pattern.
        length: tokens.
        block: tokens a block; the last one may be cut.
        columns: key positions gathered for every query, apart from the local blocks.
        rows: query positions computed over all keys, apart from the local blocks.
        stride: tokens whose distance is a multiple of it meet apart from the local blocks; 0 for none.
        key_blocks: (query blocks, width) the key blocks that each query block reads, ascending; -1 is none.
        full: (query blocks, width) True where all pairs of the two blocks are allowed, so that no mask is needed.
    """

    pattern: Pattern
    length: int
    block: int
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    stride: int = 0
    key_blocks: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    full: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))

    @property
    def dense(self) -> bool:
        """True for `Full`, which needs no table."""
        return isinstance(self.pattern, Full)

    @cached_property
    def computed_pairs(self) -> int:
        """Pairs that a backend computes when it reads whole blocks, one column at a time and whole rows."""
        if self.dense:
            return self.length**2
        local = int((self.key_blocks >= 0).sum()) * self.block**2
        classmates = -(-self.length // self.stride) if self.stride else 0
        return min(local + self.length * (len(self.columns) + len(self.rows) + classmates), self.length**2)

    @cached_property
    def allowed_pairs(self) -> int:
        """Pairs that the pattern allows, counted."""
        if self.dense:
            return self.length**2
        total = 0
        columns, rows = np.asarray(self.columns, np.int64), np.asarray(self.rows, np.int64)
        for index, table in enumerate(self.key_blocks):
            queries = np.arange(index * self.block, min((index + 1) * self.block, self.length))
            queries = queries[~np.isin(queries, rows)]
            blocks = table[table >= 0]
            keys = (blocks[:, None] * self.block + np.arange(self.block)).reshape(-1)
            keys = keys[(keys < self.length) & ~np.isin(keys, columns)]
            near = _allowed(self.pattern, queries, keys, self.length) & ~_classmates(queries, keys, self.stride)
            total += int(np.count_nonzero(near))
            total += int(np.count_nonzero(_allowed(self.pattern, queries, columns, self.length)))
        for residue in range(self.stride):
            members = np.arange(residue, self.length, self.stride)
            queries, keys = members[~np.isin(members, rows)], members[~np.isin(members, columns)]
            total += int(np.count_nonzero(_allowed(self.pattern, queries, keys, self.length)))
        everything = np.arange(self.length)
        return total + int(np.count_nonzero(_allowed(self.pattern, rows, everything, self.length)))


def _classmates(queries: np.ndarray, keys: np.ndarray, stride: int) -> np.ndarray:
    """Say which pairs lie a whole multiple of the stride apart."""
    if not stride:
        return np.zeros((len(queries), len(keys)), bool)
    return np.asarray((queries[:, None] - keys[None, :]) % stride == 0)


def _allowed(pattern: Pattern, queries: np.ndarray, keys: np.ndarray, length: int) -> np.ndarray:
    mask = pattern.allows(queries[:, None], keys[None, :], length)
    return np.broadcast_to(mask, (len(queries), len(keys)))


@lru_cache(maxsize=128)
def plan(pattern: Pattern, length: int, block: int) -> Layout:
    """Lay a plain pattern out in blocks.

    Args:
        pattern: a pattern without schedules.
        length: tokens.
        block: tokens a block.
    """
    if isinstance(pattern, Full):
        return Layout(pattern, length, block)
    bounds = pattern.bounds() or _scan(pattern, length)
    if bounds.stride >= length:  # no two tokens are so far apart
        bounds = replace(bounds, stride=0)
    columns = tuple(c for c in bounds.columns if c < length)
    rows = tuple(r for r in bounds.rows if r < length)
    tables, fulls = [], []
    count = -(-length // block)
    for index in range(count):
        blocks = _candidates(bounds, index, length, block)
        kept, full = _blocks_that_hold_pairs(pattern, index, blocks, length, block, columns, rows, bounds.stride)
        tables.append(blocks[kept])
        fulls.append(full[kept])
    width = max((len(table) for table in tables), default=0)
    key_blocks = np.full((count, width), -1, np.int64)
    full_blocks = np.zeros((count, width), bool)
    for index, (table, full) in enumerate(zip(tables, fulls, strict=True)):
        key_blocks[index, : len(table)] = table
        full_blocks[index, : len(full)] = full
    return Layout(pattern, length, block, columns, rows, bounds.stride, key_blocks, full_blocks)


def _candidates(bounds: Bounds, index: int, length: int, block: int) -> np.ndarray:
    """Return the key blocks that may hold pairs of one query block, apart from columns and classmates."""
    first, last = index * block, min((index + 1) * block, length) - 1
    near = np.arange(max(0, first - bounds.left) // block, min(length - 1, last + bounds.right) // block + 1)
    spans = [span for pattern in bounds.scattered for span in pattern.key_spans(first, last, length)]
    far = [np.arange(start // block, (stop - 1) // block + 1) for start, stop in spans]
    return np.unique(np.concatenate([near, *far]))


def _blocks_that_hold_pairs(
    pattern: Pattern,
    index: int,
    blocks: np.ndarray,
    length: int,
    block: int,
    columns: tuple[int, ...],
    rows: tuple[int, ...],
    stride: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Say of candidate key blocks which hold a pair that nothing else has, and which are allowed throughout."""
    queries = np.arange(index * block, (index + 1) * block)
    keys = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    allowed = _allowed(pattern, queries, keys, length)
    real = (queries < length)[:, None] & (keys < length)[None, :]
    elsewhere = np.isin(queries, rows)[:, None] | np.isin(keys, columns)[None, :]
    elsewhere = elsewhere | _classmates(queries, keys, stride)
    shape = (block, len(blocks), block)
    kept = (allowed & real & ~elsewhere).reshape(shape).any(axis=(0, 2))
    full = (allowed & ~elsewhere).reshape(shape).all(axis=(0, 2))
    return np.asarray(kept), np.asarray(full)


def _scan(pattern: Pattern, length: int, chunk: int = 256) -> Bounds:
    """Find the columns and rows of a pattern without bounds by looking at all pairs, a chunk of queries at a time."""
    keys = np.arange(length)
    column = np.ones(length, bool)
    row = np.zeros(length, bool)
    for start in range(0, length, chunk):
        queries = np.arange(start, min(start + chunk, length))
        allowed = _allowed(pattern, queries, keys, length)
        column &= allowed.all(axis=0)
        row[queries] = allowed.all(axis=1)
    few = max(1, length // 16)  # more than that is a dense region, which blocks hold better
    columns = np.flatnonzero(column) if column.sum() <= few else ()
    rows = np.flatnonzero(row) if row.sum() <= few else ()
    return Bounds(length, length, tuple(map(int, columns)), tuple(map(int, rows)))
