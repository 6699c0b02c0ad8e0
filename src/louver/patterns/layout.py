"""From pairs to blocks: which key blocks a query block has to read.

A `Layout` keeps sparse things sparse: local blocks as a small table, global tokens as single columns and rows instead
of whole blocks, and dense patterns as no table at all. For a pattern with `Pattern.bounds` it takes O(n) time and
memory; without, O(n²) time and still O(n) memory for the table of a bounded pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
        key_blocks: (query blocks, width) the key blocks that each query block reads, ascending; -1 is none.
        full: (query blocks, width) True where all pairs of the two blocks are allowed, so that no mask is needed.
    """

    pattern: Pattern
    length: int
    block: int
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
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
        return min(local + self.length * (len(self.columns) + len(self.rows)), self.length**2)

    @cached_property
    def allowed_pairs(self) -> int:
        """Pairs that the pattern allows, counted."""
        if self.dense:
            return self.length**2
        total = 0
        special = np.asarray(self.columns, np.int64)
        for index, table in enumerate(self.key_blocks):
            queries = np.arange(index * self.block, min((index + 1) * self.block, self.length))
            queries = queries[~np.isin(queries, self.rows)]
            blocks = table[table >= 0]
            keys = (blocks[:, None] * self.block + np.arange(self.block)).reshape(-1)
            keys = np.concatenate([keys[(keys < self.length) & ~np.isin(keys, special)], special])
            total += int(np.count_nonzero(_allowed(self.pattern, queries, keys, self.length)))
        everything = np.arange(self.length)
        return total + int(np.count_nonzero(_allowed(self.pattern, np.asarray(self.rows), everything, self.length)))


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
    columns = tuple(c for c in bounds.columns if c < length)
    rows = tuple(r for r in bounds.rows if r < length)
    count = -(-length // block)
    tables, fulls = [], []
    for index in range(count):
        first = max(0, (index * block - bounds.left) // block)
        last = min(count - 1, ((index + 1) * block - 1 + bounds.right) // block)
        blocks = np.arange(first, last + 1)
        kept, full = _blocks_that_hold_pairs(pattern, index, blocks, length, block, columns, rows)
        tables.append(blocks[kept])
        fulls.append(full[kept])
    width = max((len(table) for table in tables), default=0)
    key_blocks = np.full((count, width), -1, np.int64)
    full_blocks = np.zeros((count, width), bool)
    for index, (table, full) in enumerate(zip(tables, fulls, strict=True)):
        key_blocks[index, : len(table)] = table
        full_blocks[index, : len(full)] = full
    return Layout(pattern, length, block, columns, rows, key_blocks, full_blocks)


def _blocks_that_hold_pairs(
    pattern: Pattern,
    index: int,
    blocks: np.ndarray,
    length: int,
    block: int,
    columns: tuple[int, ...],
    rows: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Say of candidate key blocks which hold a pair that no column or row has, and which are allowed throughout."""
    queries = np.arange(index * block, (index + 1) * block)
    keys = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    allowed = _allowed(pattern, queries, keys, length)
    real = (queries < length)[:, None] & (keys < length)[None, :]
    elsewhere = np.isin(queries, rows)[:, None] | np.isin(keys, columns)[None, :]
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
