"""Labelled texts as what a model reads: the same cleaning, truncation, prompt and specials as at serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from louver.bundle import Card
from louver.decode import pool_windows
from louver.encoders.pooling import Reader
from louver.errors import TextError
from louver.tasks import Example
from louver.text import Tokenizer, Truncation, inputs, rectangle

Batch = dict[str, Tensor]
Feature = dict[str, Any]


@dataclass(frozen=True)
class Features:
    """Texts in the pieces that a model reads; one a text, or one a window.

    Attributes:
        rows: ``input_ids`` and ``labels`` of each piece; a window has its text's label.
        owners: index of the text that each piece is of, rising.
        counts: tokens of the text in each piece.
        kind: of the classification; says how windows are joined.
        pad_id: id of padding.
    """

    rows: list[Feature]
    owners: list[int]
    counts: list[int]
    kind: str
    pad_id: int

    @classmethod
    def of(
        cls,
        examples: Sequence[Example],
        targets: np.ndarray,
        tokenizer: Tokenizer,
        card: Card,
        *,
        max_length: int,
        truncation: str,
    ) -> Features:
        """Tokenize examples.

        Args:
            examples: labelled texts.
            targets: what the task made of their labels, row by row.
            tokenizer: of the model.
            card: for the prompt and the kind.
            max_length: tokens, specials and prompt included.
            truncation: name of a truncation.

        Raises:
            TextError: if a text is too long and truncation is ``error``.
        """
        rule = Truncation.named(truncation)
        texts = [e.text for e in examples]
        found = inputs(tokenizer, texts, max_length=max_length, truncation=rule, prompt=card.prompt)
        refused = next((one.error for one in found if one.error is not None), None)
        if refused is not None:
            raise TextError(refused)
        rows = [{"input_ids": piece, "labels": targets[i]} for i, one in enumerate(found) for piece in one.pieces]
        owners = [i for i, one in enumerate(found) for _ in one.pieces]
        counts = [count for one in found for count in one.counts]
        return cls(rows, owners, counts, card.kind or "single", tokenizer.pad_id)

    @property
    def labels(self) -> np.ndarray:
        """Targets, piece by piece."""
        return np.stack([row["labels"] for row in self.rows])

    def join(self, outputs: np.ndarray) -> np.ndarray:
        """Join the answers (pieces, outputs) of each text's windows, as at serving: (texts, outputs)."""
        owners = np.asarray(self.owners)
        if len(self.rows) == owners[-1] + 1:
            return outputs
        groups = [np.flatnonzero(owners == text) for text in range(owners[-1] + 1)]
        return np.stack([pool_windows(outputs[mine], [self.counts[i] for i in mine], self.kind) for mine in groups])

    @torch.inference_mode()
    def answers(
        self, reader: Reader, *, ask: Callable[[Tensor, Tensor], Tensor] | None = None, tokens: int = 8192
    ) -> np.ndarray:
        """Run a reader over every piece, in batches of similar length.

        Args:
            reader: put into evaluation mode.
            ask: what to run, from ids and mask to one row a piece; the reader itself if None.
            tokens: tokens a batch at most.

        Returns:
            (pieces, outputs), in the order of the pieces.
        """
        reader.eval()
        device = next(reader.parameters()).device
        found: list[np.ndarray] = [np.empty(0)] * len(self.rows)
        order = sorted(range(len(self.rows)), key=lambda i: len(self.rows[i]["input_ids"]))
        while order:
            taken = 1
            while taken < len(order) and len(self.rows[order[taken]]["input_ids"]) * (taken + 1) <= tokens:
                taken += 1
            batch = collate(self.pad_id)([{"input_ids": self.rows[i]["input_ids"]} for i in order[:taken]])
            ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
            output = (ask or reader)(ids, mask).float().cpu().numpy()
            for i, row in zip(order[:taken], output, strict=True):
                found[i] = row
            order = order[taken:]
        return np.stack(found)

    def logits(self, reader: Reader) -> np.ndarray:
        """Return a reader's answer to every text, (texts, outputs)."""
        return self.join(self.answers(reader))


def collate(pad_id: int) -> Callable[[Sequence[Feature]], Batch]:
    """Return a collator that pads ids to the longest piece of a batch and stacks everything else."""

    def join(features: Sequence[Feature]) -> Batch:
        ids, mask = (torch.from_numpy(x) for x in rectangle([f["input_ids"] for f in features], pad_id))
        rest = {key: torch.as_tensor(np.stack([f[key] for f in features])) for key in features[0] if key != "input_ids"}
        return {"input_ids": ids, "attention_mask": mask, **rest}

    return join
