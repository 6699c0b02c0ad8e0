"""`Kept`: a random share of all pairs; what the training transform `DropEdges` intersects with, anew at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import UNBOUNDED, Bounds, Pattern, register
from louver.patterns.hashing import hashed


@register
@dataclass(frozen=True)
class Kept(Pattern):
    """Each pair with probability `share`, and every token itself; ``window(128) & kept(0.3, seed=7)``.

    Args:
        share: of the pairs that is kept, between 0 and 1.
        seed: another seed, other pairs.

    Raises:
        PatternError: if the share is out of range.
    """

    word: ClassVar[str] = "kept"
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise PatternError(f"kept share must lie between 0 and 1, got {self.share}; 0.3 keeps three pairs of ten")

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow a pair if its hash is low enough."""
        return (hashed(self.seed, queries, keys) < int(self.share * 2**32)) | (queries == keys)

    def bounds(self) -> Bounds:
        """Return all: a random share leaves nothing out that could be described."""
        return Bounds(UNBOUNDED, UNBOUNDED)
