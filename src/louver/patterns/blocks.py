"""`Blocks`: everybody sees the own block and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Blocks(Pattern):
    """Block-local attention (BigBird: Zaheer et al. 2020, appendix D; Child et al. 2019, section 5).

    The text is cut into blocks; a block sees itself and `neighbours` blocks on each side: n · size · (2 neighbours + 1)
    pairs. No block is masked in part, which makes it the cheapest pattern a pair.

    Args:
        size: tokens a block.
        neighbours: blocks seen on each side.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "blocks"
    size: int
    neighbours: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise PatternError(f"blocks size must be positive, got {self.size}; 64 is a common choice")
        if self.neighbours < 0:
            raise PatternError(f"blocks neighbours must not be negative, got {self.neighbours}; 0 means the own block")

    @property
    def grain(self) -> int:
        """The size."""
        return self.size

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys whose block is at most `neighbours` away."""
        return abs(queries // self.size - keys // self.size) <= self.neighbours

    def bounds(self) -> Bounds:
        """Return the farthest token of the farthest block."""
        reach = self.size * (self.neighbours + 1) - 1
        return Bounds(reach, reach)
