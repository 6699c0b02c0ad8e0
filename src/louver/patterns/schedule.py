"""Patterns that depend on the layer, the head or the text's length, and the functions that make them."""

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

    @property
    def period(self) -> int:
        """The first pattern comes again after n layers."""
        return self.n

    def resolve(self, layer: int = 0, head: int | None = None) -> Pattern:
        """Pick by the layer's index."""
        return (self.pattern if layer % self.n == 0 else self.else_).resolve(layer, head)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Refuse: pairs exist for a layer only."""
        raise PatternError(f"{self} has other pairs in each layer; call resolve(layer) first")

    def __str__(self) -> str:
        return f"every({self.n}, {self.pattern}, else_={self.else_})"


@dataclass(frozen=True)
class Branches(Pattern):
    """Patterns by a number: the first branch whose limit is not under it is taken."""

    branches: tuple[tuple[float, Pattern], ...]

    def __post_init__(self) -> None:
        limits = [limit for limit, _ in self.branches]
        if not limits or limits != sorted(set(limits)) or limits[0] < 1 or not math.isinf(limits[-1]):
            raise PatternError(f"{self.word} needs rising limits that end with inf, got {limits}; add inf: pattern")
        if any(isinstance(part, type(self)) for _, pattern in self.branches for part in pattern.walk()):
            raise PatternError(f"{self.word} must not stand inside {self.word}; write all limits into one")

    def parts(self) -> tuple[Pattern, ...]:
        """Return the branches' patterns."""
        return tuple(pattern for _, pattern in self.branches)

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Return the same limits with other patterns."""
        return type(self)(tuple(zip((limit for limit, _ in self.branches), parts, strict=True)))

    def pick(self, number: int) -> Pattern:
        """Return the pattern for this number."""
        return next(pattern for limit, pattern in self.branches if number <= limit)

    def __str__(self) -> str:
        shown = ", ".join(
            f"{'inf' if math.isinf(limit) else int(limit)}: {pattern}" for limit, pattern in self.branches
        )
        return f"{self.word}({{{shown}}})"


@register
@dataclass(frozen=True)
class ByLength(Branches):
    """The pattern by the text's own length: real tokens with specials, never those of a padded batch."""

    word: ClassVar[str] = "by_length"

    def at(self, length: int) -> Pattern:
        """Pick by the length."""
        return self.pick(length).at(length)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Apply the branch of this length (a plain int)."""
        return self.at(int(length)).allows(queries, keys, length)


@register
@dataclass(frozen=True)
class Heads(Branches):
    """A few heads that see far and many that see near (Longformer dilates two heads: Beltagy et al. 2020, 3.1).

    The limits are numbers of heads, counted from 1: ``heads({2: full, inf: window(64)})`` lets two see all.
    """

    word: ClassVar[str] = "heads"

    def resolve(self, layer: int = 0, head: int | None = None) -> Pattern:
        """Pick by the head's index."""
        return super().resolve(layer) if head is None else self.pick(head + 1).resolve(layer, head)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Refuse: pairs exist for a head only."""
        raise PatternError(f"{self} has other pairs in each head; call resolve(layer, head) first")


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
    return ByLength(_sorted(branches))


def heads(branches: Mapping[float | str, Pattern | str]) -> Pattern:
    """Pick the pattern by the head.

    Args:
        branches: number of the last head (counted from 1) to pattern or its string; the last limit is ``"inf"``.

    Raises:
        PatternError: if the last limit is not infinite.
    """
    return Heads(_sorted(branches))


def _sorted(branches: Mapping[float | str, Pattern | str]) -> tuple[tuple[float, Pattern], ...]:
    found = [(float(limit), _read(pattern)) for limit, pattern in branches.items()]
    return tuple(sorted(found, key=lambda branch: branch[0]))


def _read(pattern: Pattern | str) -> Pattern:
    from louver.patterns.grammar import parse  # the grammar knows every pattern, this one too

    return parse(pattern)
