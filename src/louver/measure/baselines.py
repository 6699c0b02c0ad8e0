"""The same weights as most people run them: transformers, its own SDPA attention, batches padded to the longest text.

- ``truncated``: the first 512 tokens of each text.
- ``windows``: 512-token windows, their answers pooled.
- ``dense``: every pair at full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal

import numpy as np
import torch

from louver.bundle import Bundle
from louver.decode import Output, join, stack
from louver.encoders import read_bundle
from louver.errors import OptionError, TextError, unknown
from louver.text import Text, Tokenizer, Truncation, inputs, rectangle

Kind = Literal["truncated", "windows", "dense"]
KINDS: tuple[Kind, ...] = ("truncated", "windows", "dense")


class Baseline:
    """A bundle's weights on transformers with SDPA, in batches as they come.

    Args:
        bundle: of a task, with transformers files.
        kind: how long texts are treated.
        max_length: tokens a call, specials included.
        batch_size: texts (or windows) a call.

    Raises:
        OptionError: if there is no such kind, or a number is out of range.
    """

    def __init__(self, bundle: Bundle, kind: str, *, max_length: int, batch_size: int = 8) -> None:
        if kind not in KINDS:
            raise OptionError(unknown("baseline", kind, KINDS))
        if batch_size < 1:
            raise OptionError(f"batch_size must be positive, got {batch_size}; 8 is the default")
        if not 1 <= max_length <= bundle.card.max_length:
            raise OptionError(
                f"{bundle.path} reads {bundle.card.max_length} tokens, got max_length={max_length}; give at most that"
            )
        self.kind = kind
        self.max_length = max_length
        self.batch_size = batch_size
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._reader = read_bundle(bundle, dense=True).to(self._device)
        self._tokenizer = Tokenizer.open(bundle.path)
        self._card = bundle.card

    def logits(self, texts: Sequence[Text]) -> np.ndarray:
        """Return (n, outputs), or n objects `TokenLogits`, in order.

        Raises:
            TextError: for the first text that has no tokens.
        """
        rule = Truncation.WINDOW if self.kind == "windows" else Truncation.HEAD
        rows: list[Output] = []
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            found = inputs(
                self._tokenizer,
                batch,
                max_length=self.max_length,
                truncation=rule,
                prompt=self._card.prompt,
                offsets=self._card.pooling == "none",
            )
            refused = next((one.error for one in found if one.error is not None), None)
            if refused is not None:
                raise TextError(refused)
            pieces = [piece for one in found for piece in one.pieces]
            outputs = iter(
                row
                for i in range(0, len(pieces), self.batch_size)
                for row in self._call(pieces[i : i + self.batch_size])
            )
            for one, text in zip(found, batch, strict=True):
                rows.append(join(list(islice(outputs, len(one.pieces))), one, text, self._card))
        return stack(rows)

    @torch.inference_mode()
    def _call(self, pieces: list[np.ndarray]) -> list[np.ndarray]:
        ids, mask = (torch.from_numpy(x).to(self._device) for x in rectangle(pieces, self._tokenizer.pad_id))
        found = self._reader(ids, mask).float().cpu().numpy()
        return [row if found.ndim == 2 else row[: len(piece)] for row, piece in zip(found, pieces, strict=True)]
