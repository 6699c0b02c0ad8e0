"""Who may attend to whom.

Adding a pattern takes one file in this folder: every module here is imported, and a class with `register` is known to
strings, JSON, layouts, costs, pictures, backends and the ONNX export from then on. See ``docs/patterns.md``.
"""

from importlib import import_module
from pkgutil import iter_modules

from louver.patterns.base import REGISTRY, Bounds, Cost, Intersection, Pattern, Union, is_length_free, register
from louver.patterns.blocks import Blocks
from louver.patterns.causal import Causal
from louver.patterns.full import Full
from louver.patterns.global_tokens import Global
from louver.patterns.grammar import from_json, parse, to_json
from louver.patterns.layout import Layout
from louver.patterns.schedule import ByLength, Every, by_length, every
from louver.patterns.window import Window

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "REGISTRY",
    "Blocks",
    "Bounds",
    "ByLength",
    "Causal",
    "Cost",
    "Every",
    "Full",
    "Global",
    "Intersection",
    "Layout",
    "Pattern",
    "Union",
    "Window",
    "by_length",
    "every",
    "from_json",
    "is_length_free",
    "parse",
    "register",
    "to_json",
]
