"""`Global`: a few tokens see everybody and are seen by everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.errors import PatternError
from louver.patterns.base import Bounds, Pattern, register


@register
@dataclass(frozen=True)
class Global(Pattern):
    """Global tokens (Longformer: Beltagy et al. 2020, section 3.1; ETC: Ainslie et al. 2020): 2 n g pairs.

    Use it beside a local pattern: ``window(128) | global(1)`` lets [CLS] read the whole document.

    Args:
        tokens: the first so many tokens; or give `positions`.
        positions: chosen positions, counted from the first real token. Those that a text lacks are ignored.

    Raises:
        PatternError: if neither or both are given, or a number is out of range.
    """

    word: ClassVar[str] = "global"
    tokens: int | None = None
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.positions is None):
            raise PatternError("global needs the number of first tokens or positions; write global(1)")
        if self.tokens is not None and self.tokens < 1:
            raise PatternError(f"global tokens must be positive, got {self.tokens}; leave the part out for none")
        if self.positions is not None:
            chosen = tuple(sorted(set(self.positions)))
            if not chosen or chosen[0] < 0:
                raise PatternError(f"global positions must be 0 or more, got {list(self.positions)}")
            first = chosen == tuple(range(len(chosen)))  # one spelling for one meaning
            object.__setattr__(self, "tokens", len(chosen) if first else None)
            object.__setattr__(self, "positions", None if first else chosen)

    @property
    def chosen(self) -> tuple[int, ...]:
        """The global positions, ascending."""
        return tuple(range(self.tokens)) if self.tokens is not None else (self.positions or ())

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow every pair that has a global token on either side."""
        if self.tokens is not None:
            return (queries < self.tokens) | (keys < self.tokens)
        result = (queries < 0) | (keys < 0)
        for position in self.chosen:
            result = result | (queries == position) | (keys == position)
        return result

    def bounds(self) -> Bounds:
        """Return the positions as rows and columns; nothing is local."""
        return Bounds(0, 0, columns=self.chosen, rows=self.chosen)
