"""The same weights as most people run them: transformers, its own SDPA attention, batches padded to the longest text.

- ``truncated``: the first 512 tokens of each text.
- ``windows``: 512-token windows, their answers pooled.
- ``dense``: every pair at full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from louver.bundle import Bundle
from louver.decode import pool_windows
from louver.encoders import read_bundle
from louver.text import Tokenizer, Truncation, fit

Kind = Literal["truncated", "windows", "dense"]


class Baseline:
    """A bundle's weights on transformers with SDPA, in batches as they come.

    Args:
        bundle: a classification with transformers files.
        kind: how long texts are treated.
        max_length: tokens a call, specials included.
        batch_size: texts (or windows) a call.
    """

    def __init__(self, bundle: Bundle, kind: Kind, *, max_length: int, batch_size: int = 8) -> None:
        self.kind = kind
        self.max_length = max_length
        self.batch_size = batch_size
        self._reader = read_bundle(bundle, dense=True)
        self._tokenizer = Tokenizer.open(bundle.path)
        self._card = bundle.card

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Return (n, outputs), in order."""
        rule = Truncation.WINDOW if self.kind == "windows" else Truncation.HEAD
        room = self.max_length - self._tokenizer.specials
        rows = []
        for start in range(0, len(texts), self.batch_size):
            encoded = self._tokenizer.encode([self._card.prompt + t for t in texts[start : start + self.batch_size]])
            fitted = [fit(ids, room, rule, max_length=self.max_length) for ids in encoded]
            pieces = [self._tokenizer.wrap(piece) for found in fitted for piece in found.pieces]
            outputs = np.concatenate(
                [self._call(pieces[i : i + self.batch_size]) for i in range(0, len(pieces), self.batch_size)]
            )
            place = 0
            for found in fitted:
                count = len(found.pieces)
                tokens = [len(piece) for piece in found.pieces]
                rows.append(pool_windows(outputs[place : place + count], tokens, self._card.kind))
                place += count
        return np.stack(rows)

    @torch.inference_mode()
    def _call(self, pieces: list[np.ndarray]) -> np.ndarray:
        longest = max(map(len, pieces))
        ids = torch.full((len(pieces), longest), self._tokenizer.pad_id)
        mask = torch.zeros_like(ids)
        for row, piece in enumerate(pieces):
            ids[row, : len(piece)] = torch.from_numpy(piece)
            mask[row, : len(piece)] = 1
        found: np.ndarray = self._reader(ids, mask).float().numpy()
        return found
