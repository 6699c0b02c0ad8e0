"""Answers from bundles. Works without torch for exported ones."""

from louver.runtime.predictor import Predictor
from louver.runtime.schedule import Branch, Group, padding_share, schedule

__all__ = ["Branch", "Group", "Predictor", "padding_share", "schedule"]
