"""Outputs to answers, without torch."""

from louver.decode.classify import decide, pool_windows, probabilities
from louver.decode.prediction import Output, Prediction, decode, flat, join, stack
from louver.decode.tokens import FoundSpan, Span, TokenLogits, bio, find_answer, find_spans, units

__all__ = [
    "FoundSpan",
    "Output",
    "Prediction",
    "Span",
    "TokenLogits",
    "bio",
    "decide",
    "decode",
    "find_answer",
    "find_spans",
    "flat",
    "join",
    "pool_windows",
    "probabilities",
    "stack",
    "units",
]
