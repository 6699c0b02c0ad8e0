"""Patterns by content: `TopK` and `Lsh` choose keys from the queries and keys themselves.

They are no masks of positions, so `allows` is refused, and they meet other patterns only by ``&``. What they choose is
computed by `louver.attention.selected`; here stands what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import UNBOUNDED, Bounds, Pattern, register


class Selector(Pattern):
    """A choice of keys by content."""

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Refuse: the pairs depend on the content."""
        raise PatternError(f"{self} chooses by content and has no mask of positions; use it with louver.attend")

    def computed_pairs(self, length: int) -> int:
        """Return the pairs that attention computes over what was chosen; the choice itself comes on top.

        Args:
            length: tokens.
        """
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """Return all: any key may be chosen."""
        return Bounds(UNBOUNDED, UNBOUNDED)


@register
@dataclass(frozen=True)
class TopK(Selector):
    """The `k` most important keys of each block of queries, found by a low-rank product; exact attention over them.

    Blocks of queries and of keys are averaged and projected to `rank` numbers; each query block takes the k / block key
    blocks with the largest products, its own one always. Met with a pattern that looks back alone, its first query asks
    for it, for the others would show the first what comes later. Predicting blocks costs (n / block)² · rank products
    beside n · head_dim additions: quadratic still, by block² · head_dim / rank (16,384 by default) less than all pairs,
    so that attention's n · k pairs are the larger part up to n = k · block² · head_dim / rank.
    (Ideas: Xiao et al. 2024, InfLLM; Yuan et al. 2025, section 3.3.2, blockwise selection.)

    Args:
        k: keys a query sees at most; a multiple of the block.
        rank: numbers that a block is predicted from.
        block: tokens a block.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "topk"
    k: int
    rank: int = 16
    block: int = 64

    def __post_init__(self) -> None:
        if self.block < 1 or self.rank < 1:
            raise PatternError(f"topk block and rank must be positive, got {self.block} and {self.rank}")
        if self.k < self.block or self.k % self.block:
            raise PatternError(f"topk k must be a multiple of its block of {self.block}, got {self.k}")

    @property
    def grain(self) -> int:
        """The block."""
        return self.block

    def computed_pairs(self, length: int) -> int:
        """Return k keys a query."""
        return length * min(self.k, length)


@register
@dataclass(frozen=True)
class Lsh(Selector):
    """Keys in the query's own hash bucket (Reformer: Kitaev et al. 2020, section 2): n · rounds · 2 width pairs.

    Queries and keys are hashed by random rotations into buckets and sorted by them; each chunk of `width` sorted
    queries sees the 2 · width sorted keys from where its first bucket begins, as far as they share the query's bucket.
    A pair that several rounds find counts once.

    Args:
        buckets: an even number.
        rounds: independent hashings; more find more of the near pairs.
        width: sorted queries a chunk.
        seed: of the rotations.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "lsh"
    buckets: int
    rounds: int = 2
    width: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.buckets < 2 or self.buckets % 2:
            raise PatternError(f"lsh buckets must be even and positive, got {self.buckets}")
        if self.rounds < 1 or self.width < 1:
            raise PatternError(f"lsh rounds and width must be positive, got {self.rounds} and {self.width}")

    def computed_pairs(self, length: int) -> int:
        """Return two chunks of keys a query and round."""
        return self.rounds * length * min(2 * self.width, length)
