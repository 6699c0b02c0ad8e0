"""`Causal`: nobody sees what comes later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.patterns.base import Pattern, register


@register
@dataclass(frozen=True)
class Causal(Pattern):
    """Keys at or before the query (Vaswani et al. 2017, section 3.2.3). ``causal & window(128)`` is a local decoder."""

    word: ClassVar[str] = "causal"

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow keys at or before the query."""
        return keys <= queries
