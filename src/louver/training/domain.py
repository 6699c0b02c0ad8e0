"""Domain-adversarial training: labels of one kind of texts, for texts of another kind (Ganin et al. 2016).

A second head tells the two kinds apart; its gradient is turned round before it reaches the encoder, which so learns
states that serve the labels and say nothing of the kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from louver.encoders.pooling import Reader
from louver.errors import DataError, OptionError, TextError
from louver.tasks import Batch, Classification, Example, Feature, Features, Task
from louver.text import check
from louver.training.learner import Objective
from louver.training.lesson import Lesson
from louver.training.options import tokens_to_read


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


class Domains:
    """What domain-adversarial training adds to a lesson.

    Args:
        lesson: of a classification of texts; its training rows get unlabelled ones beside them.
        texts: of the other kind, without labels; as many of them as there are labelled ones are used.
        weight: of the second head's loss, when it has risen (Ganin et al. 2016, section 5.2.2).

    Raises:
        OptionError: if the task answers for tokens, or reads pairs.
        DataError: if no text can be read.
    """

    def __init__(self, lesson: Lesson, texts: Sequence[object], weight: float) -> None:
        if not isinstance(lesson.task, Classification) or lesson.card.inputs == "pair":
            raise OptionError("texts of another domain serve labels of single texts; leave them out for other tasks")
        self.lesson, self.weight = lesson, weight
        rng = np.random.default_rng(lesson.options.seed)
        own = lesson.train.rows
        readable = [text for text in texts if _can_be_read(text)]
        if not readable:
            raise DataError(f"none of {len(texts)} texts of the other domain can be read; give some, or leave them out")
        chosen = rng.choice(len(readable), min(len(readable), len(own)), replace=False)
        examples = [Example(readable[i], lesson.data.train[0].label) for i in chosen]
        length = tokens_to_read(lesson.options, lesson.run.source)
        other = Features.of(examples, lesson.task, lesson.tokenizer, lesson.card, max_length=length, truncation="head")
        rows: list[Feature] = [{**row, "domain": 0} for row in own] + [{**row, "domain": 1} for row in other.rows]
        self.rows = replace(lesson.train, rows=rows)
        torch.manual_seed(lesson.options.seed)
        width = int(lesson.reader.encoder.config.hidden_size)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2)).to(lesson.reader.encoder.device)
        self.head.register_buffer("seen", torch.zeros(()))  # in checkpoints, so that a resumed run knows how far it is
        self._last: Tensor | None = None
        self.steps = max(1, lesson.options.epochs * len(rows) // lesson.options.batch_size)

    def objective(self, task: Task, weights: Tensor | None) -> Objective:
        """Return the loss of the labels, where there are some, and of the turned-round second head."""

        def loss(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
            ids, mask, domain = batch["input_ids"], batch["attention_mask"], batch["domain"]
            pooled = reader.pooled(ids, mask).float()
            assert reader.head is not None
            logits = reader.head(reader.dropout(pooled))
            seen = self.head.get_buffer("seen")
            again = batch["input_ids"] is self._last  # an adversary reads a batch several times
            self._last = batch["input_ids"]
            strength = 2 / (1 + math.exp(-10 * min(1.0, float(seen) / self.steps))) - 1
            seen += reader.training and not again
            kinds = F.cross_entropy(self.head(_Reversed.apply(pooled, strength)), domain)  # type: ignore[no-untyped-call]
            labelled = domain == 0
            if not labelled.any():
                return self.weight * kinds, logits
            own = {"labels": batch["labels"][labelled]}
            return task.loss(logits[labelled], own, weights) + self.weight * kinds, logits

        return loss


def _can_be_read(text: object) -> TypeGuard[str]:
    try:
        check(text)
    except TextError:
        return False
    return True
