"""Fitting ids into a model's length: one enum for training, evaluation, prediction and serving."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from louver.errors import OptionError, TextError, unknown

Ids = np.ndarray
"""A vector of token ids, int64."""


class Truncation(StrEnum):
    """What to do with a text that is longer than the model reads."""

    ERROR = "error"
    """Refuse it."""
    HEAD = "head"
    """Keep the beginning."""
    TAIL = "tail"
    """Keep the end."""
    HEAD_TAIL = "head_tail"
    """Keep a half of the room from each end (Sun et al. 2019, section 5.3.1, with equal parts)."""
    MIDDLE = "middle"
    """Keep the middle."""
    WINDOW = "window"
    """Read everything in windows and pool the answers."""

    @classmethod
    def named(cls, name: str) -> Truncation:
        """Return the member of this name.

        Raises:
            OptionError: if there is none.
        """
        try:
            return cls(name)
        except ValueError:
            raise OptionError(unknown("truncation", name, [member.value for member in cls])) from None


def cutting(name: str) -> str:
    """Return a truncation's name, ``head`` for ``error``: training and measuring leave no text out."""
    return Truncation.HEAD.value if Truncation.named(name) is Truncation.ERROR else name


@dataclass(frozen=True, eq=False)
class Fitted:
    """What is left of a text.

    Attributes:
        pieces: of `fit`, ids without specials; of `inputs`, what the model gets. One, unless windows were asked for.
        read: tokens read, over all pieces, without specials and without counting an overlap twice.
        cut: tokens not read.
        error: why there are no pieces.
        counts: tokens of the text in each piece; what windows weigh.
        offsets: if asked for, (tokens, 2) for each piece: the characters that each token stands for in the text (in
            the second one of a pair); -1 where a token is a special, of the prompt, or of the first text.
    """

    pieces: list[Ids]
    read: int
    cut: int
    error: str | None = None
    counts: tuple[int, ...] = ()
    offsets: tuple[np.ndarray, ...] = ()


def fit(ids: Ids, room: int, truncation: Truncation, *, max_length: int, overlap: int = 0) -> Fitted:
    """Fit ids into the room that a model has beside its special tokens.

    Args:
        ids: the whole text's ids, without specials.
        room: tokens that fit.
        truncation: what to do with more.
        max_length: the model's length with specials; for the message.
        overlap: tokens that neighbouring windows share.

    Raises:
        TextError: if the text is too long and truncation is ``error``.
    """
    count = len(ids)
    if count <= room:
        return Fitted([ids], count, 0)
    match truncation:
        case Truncation.ERROR:
            raise TextError(
                f"this model reads {max_length} tokens and the text has {count + max_length - room}; "
                "run 'louver extend', or set truncation to \"head\""
            )
        case Truncation.HEAD:
            kept = ids[:room]
        case Truncation.TAIL:
            kept = ids[count - room :]
        case Truncation.HEAD_TAIL:
            kept = np.concatenate([ids[: room - room // 2], ids[count - room // 2 :]])
        case Truncation.MIDDLE:
            start = (count - room) // 2
            kept = ids[start : start + room]
        case Truncation.WINDOW:
            return Fitted([ids[a : a + room] for a in range(0, count - overlap, room - overlap)], count, 0)
    return Fitted([kept], room, count - room)
