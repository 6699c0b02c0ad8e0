"""Outputs to answers, without torch."""

from louver.decode.classify import decide, pool_windows, probabilities
from louver.decode.prediction import Prediction, decode

__all__ = ["Prediction", "decide", "decode", "pool_windows", "probabilities"]
