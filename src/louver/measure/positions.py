"""Loss by position: does a model still read at its 4,000th token as it does at its 100th?

A share of a long text's tokens is hidden, the model guesses them, and the loss (cross entropy in nats) is kept by where
the token stands. The same tokens are hidden whatever the model, so that two models are compared on the same guesses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from louver.errors import DataError, OptionError

RESAMPLES = 1000


@dataclass(frozen=True)
class Stretch:
    """The loss over a stretch of positions.

    Attributes:
        start: first position.
        stop: position after the last.
        loss: mean over its hidden tokens, in nats.
        low: 2.5th percentile over resampled texts.
        high: 97.5th percentile.
        n: hidden tokens.
    """

    start: int
    stop: int
    loss: float
    low: float
    high: float
    n: int


@torch.inference_mode()
def loss_by_position(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    *,
    mask_id: int,
    special_ids: Collection[int] = (),
    width: int = 512,
    share: float = 0.15,
    window: int | None = None,
    seed: int = 0,
) -> list[Stretch]:
    """Measure a masked language model's loss along texts.

    Args:
        model: a transformers model with a masked-word head, ``logits`` (1, tokens, words).
        texts: ids, specials included.
        mask_id: id that hides a token.
        special_ids: ids that are never hidden.
        width: positions a stretch.
        share: of the tokens that is hidden.
        window: read this many tokens at a time, each by itself, as a model that reads no more must; None for all.
        seed: of what is hidden.

    Returns:
        One stretch after the other, as far as any text reaches.

    Raises:
        DataError: if there is no text, or nothing to hide.
        OptionError: if a number is out of range.
    """
    if width < 1 or not 0 < share < 1 or (window is not None and window < 1):
        raise OptionError(f"width and window must be positive and share within 0…1, got {width}, {window} and {share}")
    sums, counts = [], []  # of each text, by stretch
    stretches = -(-max(map(len, texts), default=0) // width)
    for number, text in enumerate(texts):
        ids = np.asarray(text, np.int64)
        draw = np.random.default_rng([seed, number]).random(len(ids))
        places = np.flatnonzero((draw < share) & ~np.isin(ids, list(special_ids)))
        losses = _losses(model, ids, places, mask_id, window or len(ids))
        sums.append(np.bincount(places // width, losses, stretches))
        counts.append(np.bincount(places // width, minlength=stretches))
    if not np.sum(counts):
        raise DataError("no text has a token to hide; give longer texts or a larger share")
    return _stretches(np.stack(sums), np.stack(counts), width, seed)


def _losses(model: PreTrainedModel, ids: np.ndarray, places: np.ndarray, mask_id: int, window: int) -> np.ndarray:
    """Hide the tokens in these places, and return what each costs the model."""
    hidden = ids.copy()
    hidden[places] = mask_id
    found = [np.empty(0, np.float32)]
    for start in range(0, len(ids), window):
        here = places[(places >= start) & (places < start + window)]
        if len(here):
            piece = torch.from_numpy(hidden[start : start + window])[None].to(model.device)
            logits = model(input_ids=piece, attention_mask=torch.ones_like(piece)).logits[0, here - start].float()
            truth = torch.from_numpy(ids[here]).to(model.device)
            found.append(cross_entropy(logits, truth, reduction="none").cpu().numpy())
    return np.concatenate(found)


def _stretches(sums: np.ndarray, counts: np.ndarray, width: int, seed: int) -> list[Stretch]:
    """Average each stretch over texts, with an interval over resampled texts."""
    index = np.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    found = []
    for number in np.flatnonzero(counts.sum(0)).tolist():
        total, n = sums[:, number], counts[:, number]
        again = total[index].sum(1) / np.maximum(n[index].sum(1), 1)
        low, high = np.percentile(again[n[index].sum(1) > 0], [2.5, 97.5])
        start = number * width
        mean = float(total.sum() / n.sum())
        found.append(Stretch(start, start + width, mean, float(low), float(high), int(n.sum())))
    return found
