"""`Strided`: everybody sees the neighbours and every s-th token of the whole text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Strided(Pattern):
    """Local plus strided (Sparse Transformer: Child et al. 2019, section 4.3): n (2 local + 1 + n / stride) pairs.

    Two hops reach every token. With a stride near √n the cost is n √n. ``causal & strided(64)`` is the paper's form.

    Args:
        stride: distance of the seen tokens; tokens whose distance is a multiple of it see each other.
        local: neighbours seen on each side; the stride if None, 0 for none.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "strided"
    stride: int
    local: int | None = None

    def __post_init__(self) -> None:
        if self.stride < 2:
            raise PatternError(f"strided stride must be 2 or more, got {self.stride}; 1 is full")
        if self.local is not None and self.local < 0:
            raise PatternError(f"strided local must not be negative, got {self.local}; 0 means no neighbours")
        if self.local == self.stride:  # one spelling for one meaning
            object.__setattr__(self, "local", None)

    @property
    def reach(self) -> int:
        """Neighbours seen on each side."""
        return self.stride if self.local is None else self.local

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow neighbours, and keys at whole multiples of the stride."""
        return (abs(queries - keys) <= self.reach) | ((queries - keys) % self.stride == 0)

    def bounds(self) -> Bounds:
        """Return the neighbours and the stride."""
        return Bounds(self.reach, self.reach, stride=self.stride)
