"""Who may attend to whom.

Adding a pattern takes one file in this folder: every module here is imported, and a class with `register` is known to
strings, JSON, layouts, costs, pictures, backends and the ONNX export from then on. See ``docs/patterns.md``.
"""

from importlib import import_module
from pkgutil import iter_modules

from louver.patterns.approximations import Approximation, Nystrom
from louver.patterns.base import (
    REGISTRY,
    UNBOUNDED,
    Bounds,
    Cost,
    Intersection,
    Pattern,
    Union,
    holds,
    is_length_free,
    register,
)
from louver.patterns.blocks import Blocks
from louver.patterns.causal import Causal, Prefix
from louver.patterns.full import Full
from louver.patterns.global_tokens import Global
from louver.patterns.grammar import from_json, parse, to_json
from louver.patterns.kept import Kept
from louver.patterns.layout import Layout
from louver.patterns.named import BigBird, Longformer
from louver.patterns.random_blocks import Random
from louver.patterns.schedule import ByLength, Every, Heads, by_length, every, heads
from louver.patterns.selectors import Lsh, Selector, TopK
from louver.patterns.strided import Strided
from louver.patterns.window import Window
from louver.patterns.window_2d import Window2D

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "REGISTRY",
    "UNBOUNDED",
    "Approximation",
    "BigBird",
    "Blocks",
    "Bounds",
    "ByLength",
    "Causal",
    "Cost",
    "Every",
    "Full",
    "Global",
    "Heads",
    "Intersection",
    "Kept",
    "Layout",
    "Longformer",
    "Lsh",
    "Nystrom",
    "Pattern",
    "Prefix",
    "Random",
    "Selector",
    "Strided",
    "TopK",
    "Union",
    "Window",
    "Window2D",
    "by_length",
    "every",
    "from_json",
    "heads",
    "holds",
    "is_length_free",
    "parse",
    "register",
    "to_json",
]
