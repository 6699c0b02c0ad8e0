"""Texts to the ids that a model gets: one way for training, evaluation, prediction, serving and baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from louver.errors import OptionError, TextError
from louver.text.tokenizer import Tokenizer
from louver.text.truncation import Fitted, Truncation, fit


def inputs(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_length: int,
    truncation: Truncation,
    prompt: str = "",
) -> list[Fitted]:
    """Tokenize texts, fit them into a model's length, and put the prompt and the specials around every piece.

    The prompt is part of every window, is never cut, and is not counted as text that was read.

    Args:
        tokenizer: of the model.
        texts: that `check` let through.
        max_length: tokens a piece, specials and prompt included.
        truncation: what to do with longer texts.
        prompt: put before every text.

    Returns:
        For each text its pieces, or its error.

    Raises:
        OptionError: if the prompt leaves no room for text.
    """
    found: list[Fitted] = []
    for before, ids in tokenizer.encode_after(prompt, texts):
        room = max_length - tokenizer.specials - len(before)
        if room < 1:
            raise OptionError(f"the prompt takes {len(before)} of the model's {max_length} tokens; shorten it")
        try:
            fitted = fit(ids, room, truncation, max_length=max_length)
        except TextError as error:
            found.append(Fitted([], 0, len(ids), str(error)))
            continue
        pieces = [tokenizer.wrap(np.concatenate([before, piece])) for piece in fitted.pieces]
        found.append(Fitted(pieces, fitted.read, fitted.cut))
    return found
