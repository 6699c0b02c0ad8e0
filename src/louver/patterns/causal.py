"""`Causal`: nobody sees what comes later; `Prefix`: nobody but the prefix is seen by earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import UNBOUNDED, Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Causal(Pattern):
    """Keys at or before the query (Vaswani et al. 2017, section 3.2.3). ``causal & window(128)`` is a local decoder."""

    word: ClassVar[str] = "causal"

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys at or before the query."""
        return keys <= queries

    def bounds(self) -> Bounds:
        """Return all keys to the left and none to the right."""
        return Bounds(UNBOUNDED, 0)


@register
@dataclass(frozen=True)
class Prefix(Pattern):
    """Causal, but the first tokens are seen by all: a prefix language model (Raffel et al. 2020, section 3.2.1).

    Args:
        tokens: length of the prefix.

    Raises:
        PatternError: if it is not positive.
    """

    word: ClassVar[str] = "prefix"
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise PatternError(f"prefix tokens must be positive, got {self.tokens}; write causal for none")

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys at or before the query, and those of the prefix."""
        return (keys <= queries) | (keys < self.tokens)

    def bounds(self) -> Bounds:
        """Return all keys to the left, and of those to the right the prefix."""
        return Bounds(UNBOUNDED, 0, columns=tuple(range(self.tokens)))
