"""Well-known compositions under their own names: `Longformer` and `BigBird`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from louver.patterns.base import Bounds, Pattern, register
from louver.patterns.blocks import Blocks
from louver.patterns.global_tokens import Global
from louver.patterns.random_blocks import Random
from louver.patterns.window import Window


class Named(Pattern):
    """A name for a composition.

    Attributes:
        meaning: the composition; made once, because compilers cannot make patterns while they trace.
    """

    meaning: Pattern

    def compose(self) -> Pattern:
        """Return the composition."""
        raise NotImplementedError

    @property
    def grain(self) -> int:
        """The composition's."""
        return self.meaning.grain

    def __post_init__(self) -> None:
        object.__setattr__(self, "meaning", self.compose())  # its parts refuse numbers out of range

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Allow what the composition allows."""
        return self.meaning.allows(queries, keys, length)

    def bounds(self) -> Bounds | None:
        """Return the composition's."""
        return self.meaning.bounds()


@register
@dataclass(frozen=True)
class Longformer(Named):
    """Sliding window plus global tokens (Beltagy et al. 2020, section 3.1); the paper's w is 2 · radius.

    Args:
        radius: tokens seen on each side.
        tokens: first tokens that see and are seen by all.
    """

    word: ClassVar[str] = "longformer"
    radius: int = 256
    tokens: int = 1

    def compose(self) -> Pattern:
        """Return ``window(radius) | global(tokens)``."""
        return Window(self.radius) | Global(self.tokens)


@register
@dataclass(frozen=True)
class BigBird(Named):
    """Blocks, random blocks and global tokens (Zaheer et al. 2020, sections 2 and 4, appendix D: BigBird-ITC).

    Args:
        size: tokens a block.
        neighbours: blocks seen on each side.
        random: random blocks seen.
        tokens: first tokens that see and are seen by all; one block if None.
        seed: of the random blocks.
    """

    word: ClassVar[str] = "bigbird"
    length_free: ClassVar[bool] = False
    size: int = 64
    neighbours: int = 1
    random: int = 3
    tokens: int | None = None
    seed: int = 0

    def compose(self) -> Pattern:
        """Return ``blocks(size, neighbours) | random(size, blocks=random) | global(tokens)``."""
        globals_ = Global(self.size if self.tokens is None else self.tokens)
        return Blocks(self.size, self.neighbours) | Random(self.size, self.random, self.seed) | globals_
