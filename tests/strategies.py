"""Patterns to test with: every word that a plain one may have, and any composition for property-based tests."""

from __future__ import annotations

from hypothesis import strategies as st

from louver.patterns import (
    BigBird,
    Blocks,
    Causal,
    Full,
    Global,
    Kept,
    Longformer,
    Pattern,
    Prefix,
    Random,
    Strided,
    Window,
    Window2D,
    parse,
)

PLAIN = (
    "window(128) | global(1)",
    "window(5)",
    "window(3, dilation=5) | global(positions=[0, 200])",
    "window(left=40, right=0)",
    "blocks(64, neighbours=1)",
    "blocks(48)",
    "causal & window(100)",
    "causal",
    "global(3)",
    "strided(16)",
    "strided(7, local=2) | global(1)",
    "causal & strided(32)",
    "random(16)",
    "bigbird(32, random=2)",
    "longformer(64, tokens=2)",
    "axial(14)",
    "window2d(14)",
    "prefix(16) & window(20)",
    "window(40) & kept(0.4, seed=3)",
    "causal & global(positions=[200])",
    "heads({1: window(9) | global(2), inf: blocks(16)})",
)
"""Every word, and compositions whose parts meet in odd places."""

plain = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(Window, st.integers(1, 40), dilation=st.integers(1, 4)),
    st.builds(lambda a, b: Window(left=a, right=b), st.integers(1, 30), st.integers(0, 30)),
    st.builds(Global, st.integers(1, 5)),
    st.builds(lambda p: Global(positions=tuple(p)), st.lists(st.integers(0, 80), min_size=1, max_size=4)),
    st.builds(Blocks, st.integers(1, 20), st.integers(0, 3)),
    st.builds(Strided, st.integers(2, 30), st.one_of(st.none(), st.integers(0, 40))),
    st.builds(Random, st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**40)),
    st.builds(Longformer, st.integers(1, 20), st.integers(1, 3)),
    st.builds(BigBird, st.integers(1, 12), st.integers(0, 2), st.integers(1, 3)),
    st.builds(lambda width, extra: parse(f"axial({width}, extra={extra})"), st.integers(2, 12), st.integers(0, 5)),
    st.builds(Window2D, st.integers(1, 12), st.integers(1, 3), st.integers(0, 5)),
    st.builds(Prefix, st.integers(1, 30)),
    st.builds(Kept, st.floats(0.01, 0.99), st.integers(0, 2**40)),
)
composed: st.SearchStrategy[Pattern] = st.recursive(
    plain, lambda part: st.builds(lambda a, b, both: a & b if both else a | b, part, part, st.booleans()), max_leaves=4
)
