"""Logits to answers of a classification, without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def probabilities(logits: np.ndarray, kind: str) -> np.ndarray:
    """Return softmax over the last axis for one label, a sigmoid each for several.

    Args:
        logits: (…, labels).
        kind: "single" or "multi".
    """
    logits = np.asarray(logits, np.float64)
    if kind == "multi":
        return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))  # a sigmoid that cannot overflow
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def decide(logits: np.ndarray, kind: str, thresholds: Sequence[float] = ()) -> np.ndarray:
    """Turn logits into decisions.

    Args:
        logits: (n, labels); (n, 1) for a number.
        kind: "single", "multi" or "regression".
        thresholds: of several labels, the probability from which each counts; 0.5 if empty.

    Returns:
        int64 label indices (n,), float32 zeros and ones (n, labels), or float32 numbers (n,).
    """
    if kind == "single":
        return np.asarray(np.argmax(logits, -1))
    if kind == "regression":
        return np.asarray(logits, np.float32)[..., 0]
    limits = np.asarray(thresholds) if len(thresholds) else np.full(np.shape(logits)[-1], 0.5)
    return (probabilities(logits, "multi") >= limits).astype(np.float32)


def pool_windows(logits: np.ndarray, tokens: Sequence[int], kind: str | None) -> np.ndarray:
    """Join the answers of a text's windows.

    Args:
        logits: (windows, labels) logits, or (windows, width) embeddings.
        tokens: tokens that each window read.
        kind: "multi" takes the maximum; anything else the token-weighted mean.

    Returns:
        (labels,); of one window, its own answer.
    """
    if len(logits) == 1:
        return np.asarray(logits[0])
    if kind == "multi":
        return np.asarray(np.max(logits, 0))
    return np.average(np.asarray(logits, np.float64), axis=0, weights=np.maximum(tokens, 1))
