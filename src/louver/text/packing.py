"""Short texts packed into long rows, so that little of a batch is padding.

Every text keeps its own specials and its own positions; `documents` says which tokens belong together, and attention
stays inside them, so that a packed text's states are those it has alone (Krell et al. 2021, section 3).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from louver.errors import OptionError
from louver.text.truncation import Ids


@dataclass(frozen=True, eq=False)
class Pack:
    """Texts in one row. What stands for every token is made when it is asked for: a corpus has many rows.

    Attributes:
        texts: their numbers, in the order in which they stand.
        counts: tokens of each.
    """

    texts: tuple[int, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        """Tokens of the row."""
        return sum(self.counts)

    @property
    def documents(self) -> Ids:
        """(tokens,) number of each token's text within the row, from 0."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def positions(self) -> Ids:
        """(tokens,) place of each token in its own text, from 0."""
        return np.concatenate([np.arange(count) for count in self.counts])


def pack(lengths: Sequence[int], room: int) -> list[Pack]:
    """Pack texts, longest first, each into the row where it leaves the least room (best fit decreasing).

    Args:
        lengths: tokens of each text, specials included.
        room: tokens of a row.

    Returns:
        Rows that hold every text once.

    Raises:
        OptionError: if a text is longer than a row.
    """
    if lengths and max(lengths) > room:
        raise OptionError(f"a text has {max(lengths)} tokens and a row holds {room}; truncate it, or give a longer row")
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for text in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(free, (lengths[text], -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(text)
        insort(free, (left - lengths[text], row))
    return [Pack(tuple(texts), tuple(int(lengths[text]) for text in texts)) for texts in rows]
