"""Patterns that depend on the layer or on the text's length: `Every`, `ByLength` and the functions that make them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Pattern, register


@register
@dataclass(frozen=True)
class Every(Pattern):
    """One pattern in every n-th layer, from layer 0, another in the rest (ModernBERT: Warner et al. 2024, 2.1)."""

    word: ClassVar[str] = "every"
    n: int
    pattern: Pattern
    else_: Pattern

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, Pattern) or not isinstance(self.else_, Pattern):
            raise PatternError(
                f"every takes patterns, got {self.pattern!r} and {self.else_!r}; louver.every reads strings"
            )
        if self.n < 1:
            raise PatternError(f"every needs a positive number of layers, got {self.n}; write every(3, full, else_=…)")

    def parts(self) -> tuple[Pattern, ...]:
        """Return both patterns."""
        return self.pattern, self.else_

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Return the same schedule of other patterns."""
        return Every(self.n, *parts)

    def resolve(self, layer: int = 0, head: int = 0) -> Pattern:
        """Pick by the layer's index."""
        return (self.pattern if layer % self.n == 0 else self.else_).resolve(layer, head)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Refuse: pairs exist for a layer only."""
        raise PatternError(f"{self} has other pairs in each layer; call resolve(layer) first")

    def __str__(self) -> str:
        return f"every({self.n}, {self.pattern}, else_={self.else_})"


@register
@dataclass(frozen=True)
class ByLength(Pattern):
    """The pattern by the text's own length: real tokens with specials, never those of a padded batch."""

    word: ClassVar[str] = "by_length"
    branches: tuple[tuple[float, Pattern], ...]

    def __post_init__(self) -> None:
        limits = [limit for limit, _ in self.branches]
        if not limits or limits != sorted(set(limits)) or limits[0] < 1 or not math.isinf(limits[-1]):
            raise PatternError(f"by_length needs rising limits that end with inf, got {limits}; add inf: pattern")
        if any(isinstance(part, ByLength) for _, pattern in self.branches for part in pattern.walk()):
            raise PatternError("by_length must not stand inside by_length; write all limits into one")

    def parts(self) -> tuple[Pattern, ...]:
        """Return the branches' patterns."""
        return tuple(pattern for _, pattern in self.branches)

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Return the same limits with other patterns."""
        return ByLength(tuple(zip((limit for limit, _ in self.branches), parts, strict=True)))

    def at(self, length: int) -> Pattern:
        """Pick the first branch whose limit is not under the length."""
        return next(pattern for limit, pattern in self.branches if length <= limit)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Apply the branch of this length (a plain int)."""
        return self.at(int(length)).allows(queries, keys, length)

    def __str__(self) -> str:
        shown = ", ".join(
            f"{'inf' if math.isinf(limit) else int(limit)}: {pattern}" for limit, pattern in self.branches
        )
        return f"by_length({{{shown}}})"


def every(n: int, pattern: Pattern | str, *, else_: Pattern | str) -> Pattern:
    """Use `pattern` in layers 0, n, 2n, … and `else_` in the others; strings are read as patterns."""
    return Every(n, _read(pattern), _read(else_))


def by_length(branches: Mapping[float | str, Pattern | str]) -> Pattern:
    """Pick the pattern by the text's length.

    Args:
        branches: upper limit in tokens (inclusive) to pattern or its string; the last limit is ``"inf"``.

    Raises:
        PatternError: if the last limit is not infinite.
    """
    found = [(float(limit), _read(pattern)) for limit, pattern in branches.items()]
    return ByLength(tuple(sorted(found, key=lambda branch: branch[0])))


def _read(pattern: Pattern | str) -> Pattern:
    from louver.patterns.grammar import parse  # the grammar knows every pattern, this one too

    return parse(pattern)
