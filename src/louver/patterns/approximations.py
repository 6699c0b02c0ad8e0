"""Attention that is not a choice of pairs but an approximation of all of them: `Nystrom`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import UNBOUNDED, Bounds, Pattern, register


class Approximation(Pattern):
    """All pairs, computed approximately; it goes with no other pattern."""

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Refuse: there is no mask of which this is the exact attention."""
        raise PatternError(f"{self} approximates all pairs and has no mask; use it with louver.attend, by itself")

    def computed_pairs(self, length: int) -> int:
        """Return the pairs that are computed, approximated ones not counted."""
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """Return all."""
        return Bounds(UNBOUNDED, UNBOUNDED)


@register
@dataclass(frozen=True)
class Nystrom(Approximation):
    """Attention through landmarks (Nyströmformer: Xiong et al. 2021, equations 13 and 14): 2 n · landmarks pairs.

    Landmarks are the means of equal stretches of a text's queries and keys. The result differs from exact attention.

    Args:
        landmarks: stretches that a text is cut into.
        iterations: of the pseudo-inverse.

    Raises:
        PatternError: if a number is out of range.
    """

    word: ClassVar[str] = "nystrom"
    landmarks: int = 64
    iterations: int = 6

    def __post_init__(self) -> None:
        if self.landmarks < 1 or self.iterations < 1:
            raise PatternError(
                f"nystrom landmarks and iterations must be positive, got {self.landmarks} and {self.iterations}"
            )

    def computed_pairs(self, length: int) -> int:
        """Return every query's landmarks and every landmark's keys.

        Args:
            length: tokens.
        """
        return 2 * length * min(self.landmarks, length)
