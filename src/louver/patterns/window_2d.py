"""`Window2D`: every patch of an image sees the patches around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Window2D(Pattern):
    """A grid's neighbourhood (Ramachandran et al. 2019, section 3): n (2 radius + 1)² pairs.

    The tokens are `extra` special ones ([CLS], registers: Darcet et al. 2024), which see and are seen by all, then the
    patches row by row.

    Args:
        width: patches a row of the image.
        radius: rows and columns seen on each side.
        extra: tokens before the first patch.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "window2d"
    width: int
    radius: int = 1
    extra: int = 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise PatternError(f"window2d width must be positive, got {self.width}; give the patches of a row")
        if self.radius < 1:
            raise PatternError(f"window2d radius must be positive, got {self.radius}; for neighbours give 1 or more")
        if self.extra < 0:
            raise PatternError(f"window2d extra must not be negative, got {self.extra}; give 0 for patches alone")

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow patches at most `radius` rows and columns away, and every pair with an extra token."""
        query_rows, key_rows = (queries - self.extra) // self.width, (keys - self.extra) // self.width
        rows = abs(query_rows - key_rows)
        columns = abs((queries - self.extra) % self.width - (keys - self.extra) % self.width)
        near = (rows <= self.radius) & (columns <= self.radius)
        return near | (queries < self.extra) | (keys < self.extra)

    def bounds(self) -> Bounds:
        """Return the farthest neighbour, and the extra tokens as rows and columns."""
        reach = self.radius * (self.width + 1)
        extra = tuple(range(self.extra))
        return Bounds(reach, reach, columns=extra, rows=extra)
