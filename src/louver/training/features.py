"""Examples to features: the same cleaning, truncation and specials as at serving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from louver.bundle import Card
from louver.tasks import Example
from louver.text import Tokenizer, Truncation, fit
from louver.training.fit import Feature


def features(
    examples: Sequence[Example],
    targets: np.ndarray,
    tokenizer: Tokenizer,
    card: Card,
    *,
    max_length: int,
    truncation: str,
) -> list[Feature]:
    """Tokenize examples, one feature a text; with truncation ``window``, one a window, each with the text's label.

    Args:
        examples: labelled texts.
        targets: what the task made of their labels, row by row.
        tokenizer: of the model.
        card: for the prompt.
        max_length: tokens, specials included.
        truncation: name of a truncation.
    """
    room = max_length - tokenizer.specials
    rule = Truncation.named(truncation)
    made: list[Feature] = []
    encoded = tokenizer.encode([card.prompt + e.text for e in examples])
    for ids, target in zip(encoded, targets, strict=True):
        for piece in fit(ids, room, rule, max_length=max_length).pieces:
            made.append({"input_ids": tokenizer.wrap(piece), "labels": target})
    return made
