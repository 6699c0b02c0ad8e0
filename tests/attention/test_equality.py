"""Every backend against the reference, in pairs of pattern, backend, dtype, direction, padding, length; and edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import combinations, product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import PLAIN, composed
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from louver.attention import attend, flex, joined
from louver.errors import OptionError
from louver.patterns import Full, Pattern, parse

PATTERNS = ("full", *PLAIN, "by_length({127: full, inf: window(9) | global(1)})")
LENGTHS = (1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 131, 257, 383, 511, 512, 513, 521, 769, 1009, 1024, 1025)
WAYS = ("dense", "gathered", "copies", "chunked", "flex", "auto")
"""Backends; "copies" is `gathered` as other devices, dropout and graphs take it."""

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Case = tuple[str, str, torch.dtype, bool, str, int]


def possible(case: tuple[Any, ...]) -> bool:
    """The table of who can do what; `test_who_cannot_says_so` holds it against the refusals."""
    pattern, way, _, backward, *_ = case
    if way in ("gathered", "copies") and (pattern == "full" or pattern.startswith("by_length({127: full")):
        return False  # nothing to leave out of full attention
    if way == "copies" and ("strided" in pattern or "axial" in pattern):
        return False  # a stride is read by one call of the kernel, or not at all
    return not (way == "flex" and backward)  # no gradients on CPUs


def covering_array() -> list[Case]:
    """Return cases in which every two values of different columns that go together meet (greedy, always the same)."""
    columns: tuple[tuple[Any, ...], ...] = (PATTERNS, WAYS, DTYPES, (False, True), ("none", "right", "left"), LENGTHS)
    rng = Random(0)
    wanted = [
        (i, a, j, b)
        for i, j in combinations(range(len(columns)), 2)
        for a, b in product(columns[i], columns[j])
        if i or j > 3 or possible((a, b if j == 1 else "auto", torch.float32, b if j == 3 else False))
    ]
    left = {pair for pair in wanted if not (pair[:2] == (1, "flex") and pair[2:] == (3, True))}
    cases: list[Case] = []
    while left:
        i, a, j, b = min(left, key=str)
        best: tuple[int, tuple[Any, ...]] = (-1, ())
        for _ in range(30):
            drawn = [rng.choice(column) for column in columns]
            drawn[i], drawn[j] = a, b
            if possible(tuple(drawn)):
                best = max(best, (len(left & pairs_of(drawn)), tuple(drawn)), key=lambda found: found[0])
        assert best[0] > 0, (i, a, j, b)
        left -= pairs_of(best[1])
        cases.append(best[1])
    return cases


def pairs_of(case: Any) -> set[tuple[int, Any, int, Any]]:
    return {(i, case[i], j, case[j]) for i, j in combinations(range(len(case)), 2)}


@contextmanager
def taking(way: str) -> Iterator[str]:
    """Yield the backend's name, while it takes the way that is meant.

    FlexAttention is traced as always but run by torch's plain steps, for a compiler would take seconds a pattern;
    `test_backends` compiles it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if way == "copies":
            patch.setattr(joined, "available", lambda *_: False)
        if way == "flex":
            patch.setattr(flex, "_compiled", _traced)
        yield "gathered" if way == "copies" else way


def _traced() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention, fullgraph=True, backend="eager")
    return compiled


def inputs(rows: int, tokens: int, dtype: torch.dtype, width: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (torch.randn(rows, 2, tokens, width, generator=generator).to(dtype) for _ in range(3))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def padded(rows: int, tokens: int, side: str) -> Tensor | None:
    if side == "none":
        return None
    lengths = torch.tensor([tokens, max(1, tokens // 2), 0][:rows])
    right = torch.arange(tokens) < lengths[:, None]
    return right if side == "right" else right.flip(1)


def gap(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float(((found - expected).abs() / (1 + expected.abs())).max())


@pytest.mark.parametrize("case", covering_array(), ids=lambda c: "-".join(str(x).replace("torch.", "") for x in c))
def test_equals_the_reference(case: Case) -> None:
    pattern, way, dtype, backward, side, tokens = case
    rows = 1 if side == "none" else 3
    q, k, v = inputs(rows, tokens, dtype)
    padding = padded(rows, tokens, side)
    precise = tuple(x.detach().double().requires_grad_() for x in (q, k, v))
    expected = attend(precise[0], precise[1], precise[2], pattern, padding=padding, impl="reference")
    with taking(way) as impl, torch.set_grad_enabled(backward):
        found = attend(q, k, v, pattern, padding=padding, impl=impl)
        assert found.dtype is dtype
        assert gap(found, expected) <= TOLERANCE[dtype]
        if not backward:
            return
        weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        wanted = torch.autograd.grad((expected * weight).sum(), precise)
        got = torch.autograd.grad((found.double() * weight).sum(), (q, k, v))
    for a, b in zip(got, wanted, strict=True):
        # In bf16 a key that hundreds of queries see sums as many rounded terms: its error goes by its largest number.
        size = b.abs() if dtype is torch.float32 else b.abs().amax(-1, keepdim=True)
        assert float(((a.double() - b).abs() / (1 + size)).max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("way", ["dense", "gathered", "copies", "chunked"])
@settings(max_examples=60, deadline=None)
@given(pattern=composed, tokens=st.integers(1, 300), share=st.floats(0, 1), left=st.booleans())
def test_any_composition(way: str, pattern: Pattern, tokens: int, share: float, left: bool) -> None:
    q, k, v = inputs(2, tokens, torch.float32)
    padding = torch.arange(tokens) < torch.tensor([[tokens], [round(share * tokens)]])
    padding = padding.flip(1) if left else padding
    expected = attend(q, k, v, pattern, padding=padding, impl="reference")
    bounds = pattern.bounds()
    strided = bounds is not None and bool(bounds.stride)
    can = way in ("dense", "chunked") or not (isinstance(pattern, Full) or (strided and way == "copies"))
    with taking(way) as impl, nullcontext() if can else pytest.raises(OptionError, match=r"has nothing|reads strides"):
        found = attend(q, k, v, pattern, padding=padding, impl=impl)
        assert gap(found, expected) <= 1e-5


@pytest.mark.parametrize("way", ["dense", "gathered", "copies", "chunked", "flex"])
@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("window(128)", lambda q, k: abs(q - k) <= 128),
        ("window(31)", lambda q, k: abs(q - k) <= 31),
        ("window(32)", lambda q, k: abs(q - k) <= 32),
        ("window(33)", lambda q, k: abs(q - k) <= 33),
        ("window(left=64, right=1)", lambda q, k: -64 <= k - q <= 1),
        ("window(10, dilation=7)", lambda q, k: abs(q - k) <= 70 and (q - k) % 7 == 0),
        ("blocks(64)", lambda q, k: abs(q // 64 - k // 64) <= 1),
        ("blocks(64, neighbours=3)", lambda q, k: abs(q // 64 - k // 64) <= 3),
        ("blocks(32, neighbours=0)", lambda q, k: q // 32 == k // 32),
        ("window(128) | global(1)", lambda q, k: abs(q - k) <= 128 or q == 0 or k == 0),
        ("causal & window(128)", lambda q, k: 0 <= q - k <= 128),
        ("causal & blocks(64)", lambda q, k: k <= q and q // 64 - k // 64 <= 1),
    ],
)
@pytest.mark.parametrize("tokens", [389, 448])
def test_who_sees_whom_on_both_sides_of_every_edge(
    pattern: str, rule: Callable[[int, int], bool], tokens: int, way: str
) -> None:
    """Equal scores and one-hot values: a backend's output shows pair by pair which keys it read."""
    zeros = torch.zeros(1, 1, tokens, tokens)
    with taking(way) as impl:
        out = attend(zeros, zeros, torch.eye(tokens)[None, None], pattern, impl=impl)[0, 0]
    expected = torch.tensor([[rule(q, k) for k in range(tokens)] for q in range(tokens)])
    assert torch.equal(out > 0, expected)
    assert gap(out, expected / expected.sum(1, keepdim=True)) < 1e-6


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backward", [False, True])
def test_who_cannot_says_so(pattern: str, way: str, backward: bool) -> None:
    """The table of capabilities, `possible`, is the truth: what it leaves out is refused, and nothing else is."""
    q, k, v = inputs(1, 40, torch.float32)
    with taking(way) as impl, torch.set_grad_enabled(backward):
        if possible((pattern, way, torch.float32, backward)):
            attend(q, k, v, pattern, impl=impl)
        else:
            with pytest.raises(OptionError, match=rf"impl '{impl}' .*; use 'dense' or 'auto'"):
                attend(q, k, v, pattern, impl=impl)


def test_flex_takes_any_number_of_patterns() -> None:
    """Left to itself torch compiles eight, and then computes n² scores without telling anybody."""
    torch._dynamo.reset()
    q, k, v = (x.detach() for x in inputs(1, 20, torch.float32))
    with taking("flex") as impl:
        for radius in range(1, 12):
            expected = attend(q, k, v, f"window({radius})", impl="reference")
            assert gap(attend(q, k, v, f"window({radius})", impl=impl), expected) < 1e-5


def test_the_covering_array_covers() -> None:
    cases = covering_array()
    met = set().union(*map(pairs_of, cases))
    for length, pattern in product(LENGTHS, PATTERNS):
        assert (0, pattern, 5, length) in met
    for length, way in product(LENGTHS, WAYS):
        assert (1, way, 5, length) in met
    assert len(cases) < 700
    assert all(isinstance(parse(case[0]), Pattern) for case in cases)
