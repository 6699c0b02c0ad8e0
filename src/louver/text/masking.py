"""Which tokens of a text a masked language model has to find, and what stands in their places.

Texts are masked before specials and padding are put around them, so that those are never hidden. The draw is the
caller's generator: one made of (seed, text) gives static masks, one of (seed, text, epoch) dynamic ones (Liu et al.
2019, section 4.1).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from louver.errors import OptionError, unknown
from louver.text.truncation import Ids

IGNORED = -100
"""Target of a token that is not asked for, as torch's cross entropy skips it."""

UNITS = ("token", "word", "span")
_SPAN_STOPS, _LONGEST_SPAN = 0.2, 10
"""Chance that a span ends after a word, and its words at most: 3.8 on average (Joshi et al. 2020, section 3.1)."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What masking needs to know of a tokenizer.

    Attributes:
        mask_id: id that hides a token.
        special_ids: ids that are never hidden and never put in a token's place, that of unknown words among them.
        size: number of ids.
    """

    mask_id: int
    special_ids: frozenset[int]
    size: int

    @cached_property
    def words(self) -> Ids:
        """Ids that may stand in a token's place."""
        return np.setdiff1d(np.arange(self.size), list(self.special_ids))


@dataclass(frozen=True)
class Masking:
    """How much is hidden, in which units, and how.

    Args:
        share: of a text's tokens that are asked for; at least one is.
        unit: "token" (Devlin et al. 2019, section 3.1), "word" (all tokens of a word; BERT's release of May 2019) or
            "span" (words that follow each other, lengths geometric: Joshi et al. 2020, section 3.1).
        masked: share of them that becomes the mask; by token, or by span.
        replaced: share of them that becomes a random token; the rest stays.

    Raises:
        OptionError: if a share is out of range, or the unit is unknown.
    """

    share: float = 0.15
    unit: Literal["token", "word", "span"] = "token"
    masked: float = 0.8
    replaced: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise OptionError(f"the share of hidden tokens must lie between 0 and 1, got {self.share}; 0.15 is common")
        if self.unit not in UNITS:
            raise OptionError(unknown("masking unit", self.unit, UNITS))
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1 + 1e-9:
            raise OptionError(
                f"masked and replaced are shares of the hidden tokens, got {self.masked} and {self.replaced}; "
                "0.8 and 0.1 are common"
            )

    def hide(self, ids: Ids, words: Ids, vocabulary: Vocabulary, draw: np.random.Generator) -> tuple[Ids, Ids]:
        """Hide tokens of one text.

        Args:
            ids: of the text, without specials.
            words: number of the word that each token belongs to, rising.
            vocabulary: of the tokenizer.
            draw: where chance comes from.

        Returns:
            What the model reads, and what it is to find: `IGNORED` where it is not asked.
        """
        special = _among(ids, vocabulary.special_ids)
        groups = [group for group in _words(words) if not special[group].any()]
        if not groups:
            return ids.copy(), np.full_like(ids, IGNORED)
        if self.unit == "token":
            groups = list(np.concatenate(groups)[:, None])
        chosen = self._spans(groups, draw) if self.unit == "span" else self._groups(groups, draw)
        given, asked = ids.copy(), np.full_like(ids, IGNORED)
        ordinary = vocabulary.words
        for units in chosen:
            asked[units] = ids[units]
            # one throw for a whole span, one for each token of a word
            throws = np.full(len(units), draw.random()) if self.unit == "span" else draw.random(len(units))
            given[units[throws < self.masked]] = vocabulary.mask_id
            other = units[(throws >= self.masked) & (throws < self.masked + self.replaced)]
            given[other] = draw.choice(ordinary, len(other))
        return given, asked

    def _budget(self, groups: list[Ids]) -> int:
        return max(1, round(self.share * sum(map(len, groups))))

    def _groups(self, groups: list[Ids], draw: np.random.Generator) -> list[Ids]:
        """Choose tokens or words until the budget is spent; the shortest one is taken where none fits into it."""
        left = self._budget(groups)
        chosen: list[Ids] = []
        for index in draw.permutation(len(groups)):
            if len(groups[index]) <= left:
                chosen.append(groups[index])
                left -= len(groups[index])
            if left <= 0:
                break
        return chosen or [min(groups, key=len)]

    def _spans(self, groups: list[Ids], draw: np.random.Generator) -> list[Ids]:
        """Choose stretches of words that do not overlap, until the budget is spent; the last one is cut to fit."""
        left = self._budget(groups)
        chosen: list[Ids] = []
        free, lengths = np.ones(len(groups), bool), np.asarray([len(group) for group in groups])
        while left > 0:
            starts = np.flatnonzero(free & (lengths <= left))
            if not len(starts):
                break
            first = int(draw.choice(starts))
            words = min(int(draw.geometric(_SPAN_STOPS)), _LONGEST_SPAN)
            span = [groups[first]]
            free[first] = False
            for index in range(first + 1, min(first + words, len(groups))):
                follows = groups[index][0] == span[-1][-1] + 1
                if not free[index] or not follows or sum(map(len, span)) + len(groups[index]) > left:
                    break
                span.append(groups[index])
                free[index] = False
            chosen.append(np.concatenate(span))
            left -= len(chosen[-1])
        return chosen or [min(groups, key=len)]


def _words(words: Ids) -> list[Ids]:
    """Return the places of each word's tokens."""
    return np.split(np.arange(len(words)), np.flatnonzero(np.diff(words)) + 1) if len(words) else []


def _among(ids: Ids, some: Collection[int]) -> np.ndarray:
    return np.isin(ids, list(some))
