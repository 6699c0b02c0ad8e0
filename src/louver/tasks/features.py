"""Labelled texts as what a model reads: the same cleaning, truncation, prompt and specials as at serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from louver.bundle import Card
from louver.decode import join, stack
from louver.encoders.pooling import Reader
from louver.errors import TextError
from louver.tasks.data import Example
from louver.tasks.task import Batch, Feature, Task
from louver.text import Fitted, Text, Tokenizer, Truncation, inputs, rectangle
from louver.text.masking import IGNORED

_OF_TOKENS = {"tags": IGNORED}
"""What a feature has for each token, with its padding."""


@dataclass(frozen=True)
class Features:
    """Texts in the pieces that a model reads; one a text, or one a window.

    Attributes:
        rows: ``input_ids`` of each piece, the number of its text, and what the task teaches of it.
        texts: as they were given.
        fitted: how each was cut to pieces.
        card: of the bundle, for how pieces are joined.
        pad_id: id of padding.
    """

    rows: list[Feature]
    texts: list[Text]
    fitted: list[Fitted]
    card: Card
    pad_id: int

    @classmethod
    def of(
        cls,
        examples: Sequence[Example],
        task: Task,
        tokenizer: Tokenizer,
        card: Card,
        *,
        max_length: int,
        truncation: str,
    ) -> Features:
        """Tokenize examples.

        Args:
            examples: labelled texts.
            task: that is learned.
            tokenizer: of the model.
            card: for the prompt, and for how pieces are joined.
            max_length: tokens, specials and prompt included.
            truncation: name of a truncation.

        Raises:
            TextError: if a text is too long and truncation is ``error``.
        """
        rule = Truncation.named(truncation)
        texts = [e.input for e in examples]
        fitted = inputs(
            tokenizer, texts, max_length=max_length, truncation=rule, prompt=card.prompt, offsets=task.per_token
        )
        refused = next((one.error for one in fitted if one.error is not None), None)
        if refused is not None:
            raise TextError(refused)
        rows = []
        for row, (example, target, one) in enumerate(zip(examples, task.targets(examples), fitted, strict=True)):
            for number, piece in enumerate(one.pieces):
                offsets = one.offsets[number] if task.per_token else None
                taught = task.teach(target, example.pair or example.text, offsets)
                rows.append({"input_ids": piece, "row": row, **taught})
        return cls(rows, texts, fitted, card, tokenizer.pad_id)

    def first(self, count: int) -> Features:
        """Return the first so many texts."""
        pieces = sum(len(one.pieces) for one in self.fitted[:count])
        return replace(self, rows=self.rows[:pieces], texts=self.texts[:count], fitted=self.fitted[:count])

    @property
    def labels(self) -> np.ndarray:
        """Targets of a classification, piece by piece."""
        return np.stack([row["labels"] for row in self.rows])

    def join(self, outputs: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Join the answers of each text's pieces, as at serving: one row, or one object, a text."""
        rest = iter(outputs)
        return stack(
            [
                join(list(islice(rest, len(one.pieces))), one, text, self.card)
                for text, one in zip(self.texts, self.fitted, strict=True)
            ]
        )

    @torch.inference_mode()
    def answers(
        self, reader: Reader, *, ask: Callable[[Tensor, Tensor], Tensor] | None = None, tokens: int = 8192
    ) -> list[np.ndarray]:
        """Run a reader over every piece, in batches of similar length.

        Args:
            reader: put into evaluation mode.
            ask: what to run, from ids and mask to one row a piece, or a token; the reader itself if None.
            tokens: tokens a batch at most.

        Returns:
            (outputs,) or (tokens, outputs) of each piece, in their order.
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
                found[i] = row if output.ndim == 2 else row[: len(self.rows[i]["input_ids"])]
            order = order[taken:]
        return found

    def logits(self, reader: Reader) -> np.ndarray:
        """Return a reader's answer to every text: (texts, outputs), or (texts,) objects."""
        return self.join(self.answers(reader))


def collate(pad_id: int) -> Callable[[Sequence[Feature]], Batch]:
    """Return a collator that pads what each token has to the longest piece of a batch, and stacks everything else."""

    def join(features: Sequence[Feature]) -> Batch:
        ids, mask = (torch.from_numpy(x) for x in rectangle([f["input_ids"] for f in features], pad_id))
        rest = {}
        for key in features[0].keys() - {"input_ids"}:
            rows = [f[key] for f in features]
            if key in _OF_TOKENS:
                rest[key] = torch.from_numpy(rectangle(rows, _OF_TOKENS[key], ids.shape[1])[0])
            else:
                rest[key] = torch.as_tensor(np.stack(rows))
        return {"input_ids": ids, "attention_mask": mask, **rest}

    return join
