"""`Judgement`: a reader on validation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Judgement:
    """A reader on validation.

    Attributes:
        score: the number that is to rise.
        logits: (texts, outputs) that it was made of.
    """

    score: float
    logits: np.ndarray
