"""Attention backends side by side: time, memory and error of one pattern at several lengths.

Contenders take turns in one process and medians count; dense SDPA without a mask is the baseline, as the strongest
kernel that there is. Memory is what a call adds to the peak of a fresh process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from louver.attention import attend
from louver.errors import LouverError, OptionError
from louver.measure.speed import peaks_of_memory
from louver.patterns import Approximation, Full, Pattern, Selector, holds, parse

HEADS = 12
_EVERYTHING = ("sdpa", "eager")
"""Contenders that compute all pairs."""

_EAGER_BYTES = 6 << 30
"""Scores and weights beyond this many bytes are not computed eagerly."""

_CHECKED = 64
"""Queries that are held against the oracle; all would be n² again."""


@dataclass(frozen=True)
class Row:
    """One backend at one length.

    Attributes:
        pattern: the pattern's string.
        length: tokens.
        head_dim: numbers a head.
        impl: backend, "eager" (plain steps over all pairs), or "sdpa" (torch's kernel without a mask).
        backward: whether the gradients were computed too.
        ms: median milliseconds of a call.
        peak_mb: megabytes that a call adds to its process; None where not measured.
        flops: of the allowed pairs (of all for "eager" and "sdpa"), forward, over all heads.
        speedup_vs_dense: against "sdpa".
        speedup_vs_eager: against "eager"; None where that was too large to run.
        pair_ratio: all pairs over allowed (or computed) ones: the most that sparsity can give.
        efficiency: speedup_vs_dense / pair_ratio.
        max_error: largest |Δ| / (1 + |oracle|), the oracle being float64 over the pattern's pairs; for selectors and
            approximations over all pairs: their distance to exact attention.
    """

    pattern: str
    length: int
    head_dim: int
    impl: str
    backward: bool
    ms: float
    peak_mb: float | None
    flops: int
    speedup_vs_dense: float
    speedup_vs_eager: float | None
    pair_ratio: float
    efficiency: float
    max_error: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def bench(
    pattern: Pattern | str,
    lengths: Sequence[int],
    *,
    head_dim: int = 64,
    impls: Sequence[str] = ("dense", "gathered"),
    backward: bool = False,
    rounds: int = 5,
    memory: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Race backends along a pattern, with 12 heads and one text in float32.

    Args:
        pattern: a plain pattern or its string.
        lengths: tokens of the texts.
        head_dim: numbers a head.
        impls: backends; those that refuse the pattern are left out. Selectors and approximations have one alone.
        backward: compute the gradients too.
        rounds: turns that count; one more warms up.
        memory: measure memory too, in a fresh process each.
        say: told what is being measured.

    Raises:
        OptionError: if a number is out of range.
    """
    if min(lengths, default=0) < 1 or rounds < 1 or head_dim < 1:
        raise OptionError(
            f"lengths, rounds and head_dim must be positive, got {list(lengths)}, {rounds} and {head_dim}"
        )
    plain = parse(pattern)
    inexact = holds(plain, Selector, Approximation)
    if inexact:
        impls = ("auto",)  # the one way to compute them
    rows: list[Row] = []
    for length in lengths:
        say(f"{length} tokens")
        q, k, v = _inputs(length, head_dim, backward)
        calls = _calls(plain.at(length), q, k, v, impls, backward)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(rounds + 1):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                if turn:
                    times[name].append(1000 * (time.perf_counter() - began))
        ms = {name: median(found) for name, found in times.items()}
        pairs = _pairs(plain, length)
        if not pairs:
            raise OptionError(f"{plain} allows no pair at {length} tokens; give a longer text or another pattern")
        ratio, flops = length**2 / pairs, 4 * HEADS * head_dim
        for name in calls:
            everything = name in _EVERYTHING
            speedup = ms["sdpa"] / ms[name]
            rows.append(
                Row(
                    str(plain),
                    length,
                    head_dim,
                    name,
                    backward,
                    ms=round(ms[name], 3),
                    peak_mb=_peak(str(plain), length, head_dim, name, backward) if memory else None,
                    flops=flops * (length**2 if everything else pairs),
                    speedup_vs_dense=round(speedup, 3),
                    speedup_vs_eager=round(ms["eager"] / ms[name], 3) if "eager" in ms else None,
                    pair_ratio=round(ratio, 3),
                    efficiency=round(speedup / ratio, 3),
                    max_error=_error(Full() if everything or inexact else plain.at(length), q, k, v, calls[name]()),
                )
            )
    return rows


def _pairs(pattern: Pattern, length: int) -> int:
    """Return the pairs that a pattern allows, or that a selector or an approximation computes."""
    for part in pattern.walk():
        if isinstance(part, Selector | Approximation):
            return part.computed_pairs(length)
    return pattern.cost(length, HEADS).pairs


def _inputs(length: int, head_dim: int, backward: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)

    def one() -> Tensor:
        return torch.randn(1, length, HEADS, head_dim, generator=generator).transpose(1, 2).requires_grad_(backward)

    return one(), one(), one()


def _calls(
    pattern: Pattern, q: Tensor, k: Tensor, v: Tensor, impls: Sequence[str], backward: bool
) -> dict[str, Callable[[], Tensor]]:
    """Return what is raced: SDPA and the plain steps over all pairs, then the backends along the pattern."""
    scale = q.shape[-1] ** -0.5
    forward: dict[str, Callable[[], Tensor]] = {"sdpa": lambda: attend(q, k, v, "full", impl="dense")}
    if 2 * 4 * HEADS * q.shape[2] ** 2 <= _EAGER_BYTES:
        forward["eager"] = lambda: ((q * scale) @ k.transpose(-1, -2)).softmax(-1) @ v
    for name in impls:
        try:
            attend(q[:, :, :2], k[:, :, :2], v[:, :, :2], pattern, impl=name)
        except OptionError:
            continue
        forward[name] = partial(attend, q, k, v, pattern, impl=name)
    gradient = torch.ones_like(q)

    def both(call: Callable[[], Tensor]) -> Tensor:
        out = call()
        torch.autograd.grad(out, (q, k, v), gradient)
        return out.detach()

    def alone(call: Callable[[], Tensor]) -> Tensor:
        with torch.inference_mode():
            return call()

    return {name: partial(both if backward else alone, call) for name, call in forward.items()}


def _error(pattern: Pattern, q: Tensor, k: Tensor, v: Tensor, found: Tensor) -> float:
    """Hold some queries of an output against float64."""
    length = q.shape[2]
    rows = torch.unique(torch.linspace(0, length - 1, min(_CHECKED, length)).long())
    places = rows[:, None], torch.arange(length)[None, :]
    by_head = (pattern.resolve(0, head).allows(*places, length) for head in range(HEADS))
    mask = torch.stack([one.expand(len(rows), length) for one in by_head])
    scores = (q[:, :, rows].double() @ k.double().transpose(-1, -2)) * q.shape[-1] ** -0.5
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v.double()
    return float(((found[:, :, rows] - expected).abs() / (1 + expected.abs())).max())


def _peak(pattern: str, length: int, head_dim: int, impl: str, backward: bool) -> float | None:
    peaks = peaks_of_memory(_once, pattern, length, head_dim, impl, backward)
    if len(peaks) < 2 or peaks[0] is None or peaks[1] is None:
        return None
    return round(peaks[1] - peaks[0], 1)


def _once(pattern: str, length: int, head_dim: int, impl: str, backward: bool) -> Iterator[None]:
    """Make the inputs, then call once; in a process of its own."""
    small = _inputs(64, head_dim, backward)
    _calls(parse(pattern).at(64), *small, [] if impl in _EVERYTHING else [impl], backward)[
        "sdpa"
    ]()  # loads the libraries
    q, k, v = _inputs(length, head_dim, backward)
    call = _calls(parse(pattern).at(length), q, k, v, [] if impl in _EVERYTHING else [impl], backward)[impl]
    yield
    try:
        call()
    except LouverError:
        return
    yield
