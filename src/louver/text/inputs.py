"""Texts to the ids that a model gets: one way for training, evaluation, prediction, serving and baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from louver.errors import OptionError, TextError
from louver.text.tokenizer import Tokenizer
from louver.text.truncation import Fitted, Ids, Truncation, fit


def rectangle(rows: Sequence[Ids], pad_id: int, width: int | None = None) -> tuple[Ids, Ids]:
    """Put rows of ids under each other, padded on the right.

    Args:
        rows: ids of each text.
        pad_id: id of padding.
        width: tokens a row; the longest row's if None.

    Returns:
        Ids and mask (rows, width), int64; 1 = real token.
    """
    ids = np.full((len(rows), width or max(map(len, rows))), pad_id, np.int64)
    mask = np.zeros_like(ids)
    for row, found in enumerate(rows):
        ids[row, : len(found)] = found
        mask[row, : len(found)] = 1
    return ids, mask


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
            raise OptionError(
                f"{tokenizer.specials} specials and {len(before)} tokens of prompt leave no room for text in "
                f"max_length={max_length}; give more tokens or a shorter prompt"
            )
        if not len(ids):  # nothing but characters that the tokenizer drops, such as U+200B
            found.append(Fitted([], 0, 0, "the text has no character that the tokenizer knows; drop the row"))
            continue
        try:
            fitted = fit(ids, room, truncation, max_length=max_length)
        except TextError as error:
            found.append(Fitted([], 0, len(ids), str(error)))
            continue
        pieces = [tokenizer.wrap(np.concatenate([before, piece])) for piece in fitted.pieces]
        counts = tuple(len(piece) for piece in fitted.pieces)
        found.append(Fitted(pieces, fitted.read, fitted.cut, counts=counts))
    return found
