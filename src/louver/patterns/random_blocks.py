"""`Random`: every block sees a few blocks that a hash has drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register
from louver.patterns.hashing import hashed


@register
@dataclass(frozen=True)
class Random(Pattern):
    """Random blocks (BigBird: Zaheer et al. 2020, section 2 and appendix D): n · size · blocks pairs at most.

    Query block i sees the key blocks hash(seed, i, pick) modulo the text's blocks: the same ones in training,
    evaluation and after a reload, on every backend. Two picks may fall on one block. The text's length decides which
    blocks there are, so the mask of a longer text is another one, and there is no single graph for every length.

    Args:
        size: tokens a block.
        blocks: picks of each block.
        seed: another seed, another mask.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "random"
    length_free: ClassVar[bool] = False
    size: int
    blocks: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise PatternError(f"random size must be positive, got {self.size}; 64 is a common choice")
        if self.blocks < 1:
            raise PatternError(f"random blocks must be positive, got {self.blocks}; leave the part out for none")

    @property
    def grain(self) -> int:
        """The size."""
        return self.size

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys in a block that the query's block has picked."""
        count = -(-length // self.size)
        query_blocks, key_blocks = queries // self.size, keys // self.size
        result = key_blocks == hashed(self.seed, query_blocks, 0) % count
        for pick in range(1, self.blocks):
            result = result | (key_blocks == hashed(self.seed, query_blocks, pick) % count)
        return result

    def key_spans(self, first: int, last: int, length: int) -> list[tuple[int, int]]:
        """Return the picked blocks of these queries."""
        count = -(-length // self.size)
        owners = np.arange(first // self.size, last // self.size + 1)
        picked = hashed(self.seed, owners[:, None], np.arange(self.blocks)) % count
        return [(int(b) * self.size, min(int(b + 1) * self.size, length)) for b in np.unique(picked)]

    def bounds(self) -> Bounds:
        """Return nothing near, and the picks."""
        return Bounds(0, 0, scattered=(self,))
