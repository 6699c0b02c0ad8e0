"""`Full`: everybody sees everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.patterns.base import UNBOUNDED, Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Full(Pattern):
    """All pairs: the attention of BERT (Vaswani et al. 2017, section 3.2). Costs n² pairs; exact, best under 512."""

    word: ClassVar[str] = "full"

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow every pair."""
        return (queries >= 0) | (keys >= 0)

    def bounds(self) -> Bounds:
        """Return all keys on both sides."""
        return Bounds(UNBOUNDED, UNBOUNDED)
