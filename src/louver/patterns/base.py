"""Who may attend to whom: the `Pattern` contract and its algebra.

A pattern is a frozen dataclass with one definition, `Pattern.allows`. Everything else (layout, cost, picture, the
masks of every backend, the ONNX graph) is derived from it. `allows` is written with operators alone, so the same
line answers for numpy arrays and for torch tensors.

Not covered here: padding and documents. They belong to a batch and are arguments of `louver.attention.attend`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from louver.errors import PatternError

if TYPE_CHECKING:
    from louver.patterns.layout import Layout


UNBOUNDED = 1 << 40
"""A reach beyond every text."""


class Scattered(Protocol):
    """A pattern with distant keys that are neither columns nor at whole multiples of a stride."""

    def key_spans(self, first: int, last: int, length: int) -> list[tuple[int, int]]:
        """Return the stretches (start, stop) of keys that the queries `first` to `last` may see.

        Args:
            first: position of the first query.
            last: position of the last query.
            length: tokens.
        """
        ...


@dataclass(frozen=True)
class Bounds:
    """A superset of the allowed pairs that is cheap to describe.

    A pair (query, key) outside ``query - left <= key <= query + right`` may only be allowed if the key is one of
    `columns`, the query is one of `rows`, their distance is a multiple of `stride`, or one of `scattered` names it.

    Attributes:
        left: tokens to the left that the local part may reach.
        right: tokens to the right that the local part may reach.
        columns: key positions that distant queries may see.
        rows: query positions that may see distant keys.
        stride: distance of the keys that everybody may see; 0 for none.
        scattered: patterns that name further stretches of keys themselves.
    """

    left: int
    right: int
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    stride: int = 0
    scattered: tuple[Scattered, ...] = ()

    @property
    def banded(self) -> bool:
        """True if all pairs but those of columns and rows lie in a band that is narrower than long texts."""
        return self.left + self.right < UNBOUNDED and not self.stride and not self.scattered

    @property
    def weight(self) -> int:
        """Keys a query, roughly, in a text of 4,096 tokens: tells the tighter of two descriptions."""
        long = 4096
        distant = len(self.columns) + len(self.rows) + (long // self.stride if self.stride else 0)
        return min(self.left, long) + min(self.right, long) + distant + 256 * len(self.scattered)


def _merge(all_bounds: list[Bounds], reach: Callable[[Iterable[int]], int]) -> Bounds:
    """Describe pairs that lie in the distant part of any of these, or within the joint reach."""
    return Bounds(
        reach(b.left for b in all_bounds),
        reach(b.right for b in all_bounds),
        tuple(sorted({c for b in all_bounds for c in b.columns})),
        tuple(sorted({r for b in all_bounds for r in b.rows})),
        math.gcd(*(b.stride for b in all_bounds)),
        tuple(dict.fromkeys(s for b in all_bounds for s in b.scattered)),
    )


@dataclass(frozen=True)
class Cost:
    """What one attention call costs, forward, one document.

    Attributes:
        pairs: allowed (query, key) pairs.
        computed_pairs: pairs that the block layout computes, the masked ones included.
        flops: floating point operations of the computed pairs, over all heads (2 products of 2 operations each).
        bytes: float32 bytes of keys and values that the layout reads, over all heads.
        dense_flops: the same for dense attention.
        dense_bytes: float32 bytes that dense attention without a fused kernel holds for its weights.
    """

    pairs: int
    computed_pairs: int
    flops: int
    bytes: int
    dense_flops: int
    dense_bytes: int

    @property
    def pair_ratio(self) -> float:
        """All pairs over allowed pairs: the most that sparsity can give; infinite if none is allowed."""
        if not self.pairs:
            return math.inf
        return self.dense_flops / self.flops * self.computed_pairs / max(self.pairs, 1)


class Pattern:
    """Base of all patterns. Subclasses are frozen dataclasses with a `word` and an `allows`."""

    word: ClassVar[str]
    """The name in pattern strings, as in ``window(128)``."""

    length_free: ClassVar[bool] = True
    """False if `allows` reads its length argument: such a pattern has no single graph for every length."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Refuse numbers that are not whole, or beyond every text, before anything reckons with them."""
        known: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        whole = {field.name: "int" in str(field.type) for field in known}
        for name, value in {**dict(zip(whole, values, strict=False)), **named}.items():
            if whole.get(name):
                _check_whole(f"{cls.word} {name}", value, limit=None if name == "seed" else UNBOUNDED)
        return super().__new__(cls)

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Say which pairs attend. This is the definition of the pattern.

        Args:
            queries: integer positions, counted from the first real token; numpy or torch, broadcast against `keys`.
            keys: integer positions.
            length: real tokens of the document.

        Returns:
            A boolean array of the broadcast shape; True where the query may see the key.
        """
        raise NotImplementedError

    def bounds(self) -> Bounds | None:
        """Describe a superset of the allowed pairs, or None if there is no short description.

        Override it for speed and memory. A test holds every override to `allows`.
        """
        return None

    def parts(self) -> tuple[Pattern, ...]:
        """Return the patterns that this one is made of."""
        return ()

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Return the same composition of other parts."""
        return self

    @property
    def grain(self) -> int:
        """Tokens of the blocks that this pattern is made of: backends do best with blocks that fit them."""
        return math.lcm(*(part.grain for part in self.parts()))

    @property
    def period(self) -> int:
        """Layers after which a schedule begins anew."""
        return 1

    def resolve(self, layer: int = 0, head: int | None = None) -> Pattern:
        """Return the pattern of one layer and head, without schedules.

        Args:
            layer: index of the encoder layer, from 0.
            head: index of the attention head, from 0; None leaves what depends on the head as it is.
        """
        return self.with_parts(tuple(part.resolve(layer, head) for part in self.parts()))

    def at(self, length: int) -> Pattern:
        """Return the pattern for a document of this many real tokens, without `by_length`."""
        return self.with_parts(tuple(part.at(length) for part in self.parts()))

    def layout(self, length: int, block: int = 128) -> Layout:
        """Return the blocks, columns and rows that hold the allowed pairs of a plain pattern. Cached.

        Args:
            length: tokens.
            block: tokens a block.
        """
        from louver.patterns.layout import plan

        return plan(self, length, block)

    def cost(self, length: int, heads: int = 12, head_dim: int = 64, block: int = 128) -> Cost:
        """Count the work of one document's attention in one layer, dense beside sparse.

        Of a schedule by layer it is the mean over one round of the schedule; of one by head, the mean over the heads.

        Args:
            length: tokens.
            heads: attention heads.
            head_dim: numbers a head.
            block: tokens a block of the layout.
        """
        plain = self.at(length)
        layers = math.lcm(*(part.period for part in plain.walk()))
        patterns = [plain.resolve(layer, head) for layer in range(layers) for head in range(heads)]
        layouts = [pattern.layout(length, block) for pattern in patterns]
        computed_pairs = sum(layout.computed_pairs for layout in layouts) // len(layouts)
        pair_flops = 4 * heads * head_dim
        return Cost(
            pairs=sum(layout.allowed_pairs for layout in layouts) // len(layouts),
            computed_pairs=computed_pairs,
            flops=pair_flops * computed_pairs,
            bytes=8 * heads * head_dim * computed_pairs // block,
            dense_flops=pair_flops * length * length,
            dense_bytes=4 * heads * length * length,
        )

    def mask(self, length: int) -> np.ndarray:
        """Return the (length, length) boolean mask; for pictures and tests, O(n²) memory."""
        positions = np.arange(length)
        mask = self.at(length).resolve(0, 0).allows(positions[:, None], positions[None, :], length)
        return np.broadcast_to(np.asarray(mask), (length, length))

    def walk(self) -> Iterator[Pattern]:
        """Yield this pattern and all that it is made of."""
        yield self
        for part in self.parts():
            yield from part.walk()

    def __or__(self, other: Pattern) -> Pattern:
        return _join(Union, self, other)

    def __and__(self, other: Pattern) -> Pattern:
        return _join(Intersection, self, other)

    def __str__(self) -> str:
        return _call(self.word, self._arguments())

    def _arguments(self) -> list[str]:
        """Print the fields that differ from their defaults; the first field goes without its name."""
        printed = []
        for index, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                shown = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
                printed.append(shown if index == 0 else f"{field.name}={shown}")
        return printed


def _check_whole(name: str, value: Any, limit: int | None) -> None:
    for number in value if isinstance(value, tuple | list) else (value,):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise PatternError(f"{name} must be a whole number, got {number!r}")
        if limit is not None and number > limit:
            raise PatternError(f"{name} must be at most {limit}, got {number}; no text is so long")


def _call(word: str, arguments: list[str]) -> str:
    return f"{word}({', '.join(arguments)})" if arguments else word


def _join(kind: type[Union] | type[Intersection], *patterns: Pattern) -> Pattern:
    """Flatten nested compositions of one kind, so that (a | b) | c equals a | (b | c); drop what is said twice."""
    flat: list[Pattern] = []
    for pattern in patterns:
        if not isinstance(pattern, Pattern):
            raise PatternError(f"a pattern combines with patterns, got {pattern!r}; write louver.parse({pattern!r})")
        for part in pattern.parts() if isinstance(pattern, kind) else (pattern,):
            if part not in flat:
                flat.append(part)
    return kind(tuple(flat)) if len(flat) > 1 else flat[0]


@dataclass(frozen=True)
class Union(Pattern):
    """Pairs that any of the parts allows: ``a | b``."""

    word: ClassVar[str] = "|"
    members: tuple[Pattern, ...]

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Join the parts' pairs."""
        result = self.members[0].allows(queries, keys, length)
        for part in self.members[1:]:
            result = result | part.allows(queries, keys, length)
        return result

    def bounds(self) -> Bounds | None:
        """Take the widest reach of all parts, and everybody's columns and rows."""
        found = [part.bounds() for part in self.members]
        known = [b for b in found if b is not None]
        return _merge(known, max) if len(known) == len(found) else None

    def parts(self) -> tuple[Pattern, ...]:
        """Return the members."""
        return self.members

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Join other members."""
        return _join(Union, *parts)

    def __str__(self) -> str:
        return " | ".join(str(part) for part in self.members)


@dataclass(frozen=True)
class Intersection(Pattern):
    """Pairs that all of the parts allow: ``a & b``."""

    word: ClassVar[str] = "&"
    members: tuple[Pattern, ...]

    def allows(self, queries: Any, keys: Any, length: Any) -> Any:
        """Keep the pairs that every part allows."""
        result = self.members[0].allows(queries, keys, length)
        for part in self.members[1:]:
            result = result & part.allows(queries, keys, length)
        return result

    def bounds(self) -> Bounds | None:
        """Take the tightest description: any part's own, or all parts' distant pairs within the shortest reach."""
        known = [b for b in (part.bounds() for part in self.members) if b is not None]
        return min([*known, _merge(known, min)], key=lambda b: b.weight) if known else None

    def parts(self) -> tuple[Pattern, ...]:
        """Return the members."""
        return self.members

    def with_parts(self, parts: tuple[Pattern, ...]) -> Pattern:
        """Intersect other members."""
        return _join(Intersection, *parts)

    def __str__(self) -> str:
        return " & ".join(f"({part})" if isinstance(part, Union) else str(part) for part in self.members)


REGISTRY: dict[str, type[Pattern]] = {}


def register(cls: type[Pattern]) -> type[Pattern]:
    """Make a pattern known to strings, JSON, CLI and tests under its `word`."""
    REGISTRY[cls.word] = cls
    return cls


@lru_cache(maxsize=1024)
def holds(pattern: Pattern, *kinds: type) -> bool:
    """Say whether a pattern is, or is made of, one of these kinds; kept, because every call of `attend` asks."""
    return any(isinstance(part, kinds) for part in pattern.walk())


@lru_cache(maxsize=256)
def is_length_free(pattern: Pattern) -> bool:
    """Say whether one set of pairs, cut to size, serves every length; ONNX export needs that."""
    return all(part.length_free for part in pattern.walk())
