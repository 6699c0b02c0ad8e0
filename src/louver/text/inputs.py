"""Texts to the ids that a model gets: one way for training, evaluation, prediction, serving and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from louver.errors import OptionError, TextError
from louver.text.tokenizer import Tokenizer
from louver.text.truncation import Fitted, Ids, Truncation, fit

Text = str | tuple[str, str]
"""One text, or a pair of them."""
MAX_OVERLAP = 128
"""Tokens that neighbouring windows share at most, where each token gets an answer of its own."""


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
    texts: Sequence[Text],
    *,
    max_length: int,
    truncation: Truncation,
    prompt: str = "",
    offsets: bool = False,
) -> list[Fitted]:
    """Tokenize texts, fit them into a model's length, and put the prompt and the specials around every piece.

    The prompt is part of every window, is never cut, and is not counted as text that was read. Of a pair, the text that
    is longer is cut first, down to a half of the room; windows slide over the second text, beside the whole first one.

    Args:
        tokenizer: of the model.
        texts: that `check` let through; pairs, or single ones.
        max_length: tokens a piece, specials and prompt included.
        truncation: what to do with longer texts.
        prompt: put before every text, and before the first one of a pair.
        offsets: also say where tokens stand in the text; windows then overlap, so that each token has context.

    Returns:
        For each text its pieces, or its error.

    Raises:
        OptionError: if the prompt leaves no room for text.
    """
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    pairs = [not isinstance(text, str) for text in texts]
    second_texts = [text[1] for text in texts if not isinstance(text, str)]
    seconds = iter(tokenizer.encode_after("", second_texts, offsets=offsets))
    found: list[Fitted] = []
    for paired, (before, ids, places) in zip(
        pairs, tokenizer.encode_after(prompt, firsts, offsets=offsets and not any(pairs)), strict=True
    ):
        specials = tokenizer.specials + paired * len(tokenizer.middle)
        room = max_length - specials - len(before)
        if room < 1 + paired:
            raise OptionError(
                f"{specials} specials and {len(before)} tokens of prompt leave no room for text in "
                f"max_length={max_length}; give more tokens or a shorter prompt"
            )
        parts = [_Part(ids, places)]
        if paired:
            _, ids, places = next(seconds)
            parts.append(_Part(ids, places))
        if not all(len(part.ids) for part in parts):  # nothing but characters that it drops, such as U+200B
            found.append(Fitted([], 0, 0, "the text has no character that the tokenizer knows; drop the row"))
            continue
        try:
            cut = _fit(parts, room, truncation, max_length, offsets)
        except TextError as error:
            found.append(Fitted([], 0, sum(len(part.ids) for part in parts), str(error)))
            continue
        found.append(_wrapped(tokenizer, before, cut, parts))
    return found


@dataclass(frozen=True, eq=False)
class _Part:
    """One text's ids, and where they stand in it if that was asked for."""

    ids: Ids
    places: np.ndarray | None

    def take(self, which: Ids) -> _Part:
        return _Part(self.ids[which], None if self.places is None else self.places[which])


def _fit(
    parts: list[_Part], room: int, truncation: Truncation, max_length: int, overlapping: bool
) -> list[list[_Part]]:
    """Return the parts of every piece: one part, or two of a pair."""
    *first, last = parts
    half = room // 2
    share = room
    kept: list[_Part] = []
    if first:
        beside = first[0]
        if len(beside.ids) + len(last.ids) > room and truncation is Truncation.ERROR:
            fit(np.concatenate([beside.ids, last.ids]), room, truncation, max_length=max_length)  # tells it
        if len(beside.ids) + len(last.ids) > room and len(beside.ids) > half:
            own = max(room - len(last.ids), room - half)
            # windows of the first text would show it apart from the second, so it is cut at its end
            rule = Truncation.HEAD if truncation is Truncation.WINDOW else truncation
            beside = beside.take(fit(np.arange(len(beside.ids)), own, rule, max_length=max_length).pieces[0])
        kept = [beside]
        share = room - len(beside.ids)
    overlap = min(MAX_OVERLAP, share // 2) if overlapping else 0
    pieces = fit(np.arange(len(last.ids)), share, truncation, max_length=max_length, overlap=overlap).pieces
    return [[*kept, last.take(piece)] for piece in pieces]


def _wrapped(tokenizer: Tokenizer, before: Ids, pieces: list[list[_Part]], whole: list[_Part]) -> Fitted:
    """Put prompt and specials around the parts of every piece, and count what was read."""
    rows, places = [], []
    for parts in pieces:
        ids = np.concatenate([before, parts[0].ids])
        rows.append(tokenizer.wrap(ids, *(part.ids for part in parts[1:])))
        if parts[-1].places is not None:
            row = np.full((len(rows[-1]), 2), -1, np.int64)
            end = len(row) - len(tokenizer.suffix)
            row[end - len(parts[-1].ids) : end] = parts[-1].places
            places.append(row)
    windowed = len(pieces) > 1
    first_read = sum(len(part.ids) for part in pieces[0][:-1])
    read = first_read + (len(whole[-1].ids) if windowed else len(pieces[0][-1].ids))
    counts = tuple(len(parts[-1].ids) for parts in pieces)
    return Fitted(rows, read, sum(len(part.ids) for part in whole) - read, counts=counts, offsets=tuple(places))
