"""`Axial`: every patch of an image sees its row and its column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Axial(Pattern):
    """A grid's rows and columns (Ho et al. 2019, section 3): n (width + n / width) pairs.

    Two hops reach every patch. The tokens are `extra` special ones, which see and are seen by all, then the patches row
    by row, as in ``window2d``.

    Args:
        width: patches a row of the image.
        extra: tokens before the first patch.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "axial"
    width: int
    extra: int = 1

    def __post_init__(self) -> None:
        if self.width < 2:
            raise PatternError(f"axial width must be 2 or more, got {self.width}; give the patches of a row")
        if self.extra < 0:
            raise PatternError(f"axial extra must not be negative, got {self.extra}; give 0 for patches alone")

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow patches of the same row or column, and every pair with an extra token."""
        same_row = (queries - self.extra) // self.width == (keys - self.extra) // self.width
        same_column = (queries - keys) % self.width == 0
        return same_row | same_column | (queries < self.extra) | (keys < self.extra)

    def bounds(self) -> Bounds:
        """Return the row as reach, the columns as a stride, and the extra tokens as rows and columns."""
        extra = tuple(range(self.extra))
        return Bounds(self.width - 1, self.width - 1, columns=extra, rows=extra, stride=self.width)
