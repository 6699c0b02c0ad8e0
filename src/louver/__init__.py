"""louver: long, small, fast encoders at a known price.

Names load when they are first used, so that ``import louver`` stays light and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from louver.attention import SelfAttention, attend
    from louver.bundle import Bundle
    from louver.encoders import extend, load, recommend, sentence_transformer
    from louver.errors import LouverError
    from louver.patterns import Blocks, Causal, Full, Global, Pattern, Window, by_length, every, heads, parse
    from louver.runtime import Predictor

__version__ = "0.1.0"

_HOMES = {
    "Blocks": "louver.patterns",
    "Bundle": "louver.bundle",
    "Causal": "louver.patterns",
    "Full": "louver.patterns",
    "Global": "louver.patterns",
    "LouverError": "louver.errors",
    "Pattern": "louver.patterns",
    "Predictor": "louver.runtime",
    "SelfAttention": "louver.attention",
    "Window": "louver.patterns",
    "attend": "louver.attention",
    "by_length": "louver.patterns",
    "every": "louver.patterns",
    "extend": "louver.encoders",
    "heads": "louver.patterns",
    "load": "louver.encoders",
    "parse": "louver.patterns",
    "recommend": "louver.encoders",
    "sentence_transformer": "louver.encoders",
}

__all__ = [
    "Blocks",
    "Bundle",
    "Causal",
    "Full",
    "Global",
    "LouverError",
    "Pattern",
    "Predictor",
    "SelfAttention",
    "Window",
    "attend",
    "by_length",
    "every",
    "extend",
    "heads",
    "load",
    "parse",
    "recommend",
    "sentence_transformer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'louver' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
