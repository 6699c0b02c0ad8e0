"""`Window`: everybody sees the neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Window(Pattern):
    """Sliding window (Longformer: Beltagy et al. 2020, section 3.1): n · (2 radius + 1) pairs.

    Args:
        radius: tokens seen on each side; or give `left` and `right`.
        left: tokens seen to the left.
        right: tokens seen to the right.
        dilation: see every dilation-th token only, so that the window reaches `dilation` times as far.

    Raises:
        PatternError: if a number is out of range, or radius and sides are mixed.
    """

    word: ClassVar[str] = "window"
    radius: int | None = None
    left: int | None = None
    right: int | None = None
    dilation: int = 1

    def __post_init__(self) -> None:
        if self.radius is not None:
            if self.left is not None or self.right is not None:
                raise PatternError("window takes a radius or left and right, got both; drop one")
            if self.radius < 1:
                raise PatternError(f"window radius must be positive, got {self.radius}; for both sides give 1 or more")
        else:
            if self.left is None or self.right is None:
                raise PatternError("window needs a radius, or both left and right; write window(128)")
            if self.left < 0 or self.right < 0 or self.left + self.right == 0:
                raise PatternError(
                    f"window sides must not be negative nor both 0, got left={self.left}, right={self.right}"
                )
            if self.left == self.right:  # one spelling for one meaning, so that equal patterns are equal
                object.__setattr__(self, "radius", self.left)
                object.__setattr__(self, "left", None)
                object.__setattr__(self, "right", None)
        if self.dilation < 1:
            raise PatternError(f"window dilation must be positive, got {self.dilation}; 1 means no gaps")

    @property
    def sides(self) -> tuple[int, int]:
        """How far the window reaches to the left and to the right, in tokens."""
        left = self.radius if self.radius is not None else (self.left or 0)
        right = self.radius if self.radius is not None else (self.right or 0)
        return left * self.dilation, right * self.dilation

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys within the sides; with dilation, those at whole multiples of it."""
        left, right = self.sides
        offsets = keys - queries
        inside = (offsets >= -left) & (offsets <= right)
        return inside if self.dilation == 1 else inside & (offsets % self.dilation == 0)

    def bounds(self) -> Bounds:
        """Return the sides."""
        return Bounds(*self.sides)
