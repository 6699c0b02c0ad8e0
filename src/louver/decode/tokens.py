"""What a model says of each token of one text, and how that becomes spans or an answer. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from louver.decode.classify import probabilities
from louver.text.scripts import is_hangul, is_ideograph

MAX_ANSWER_TOKENS = 64
"""Of an answer; longer spans are not looked at."""


class Span(NamedTuple):
    """A stretch of a text with a name, by characters."""

    start: int
    end: int
    label: str


class FoundSpan(NamedTuple):
    """A stretch of a text that a model found.

    Attributes:
        start: its first character.
        end: the character after its last.
        label: its name; empty for an answer.
        text: the characters.
        score: mean probability of its tokens' labels; of an answer, the logits over those of "no answer".
    """

    start: int
    end: int
    label: str
    text: str
    score: float


@dataclass(frozen=True, eq=False)
class TokenLogits:
    """Outputs for the tokens of one text.

    Attributes:
        windows: for each piece that was read, (tokens, outputs).
        offsets: for each piece, (tokens, 2): characters of the text; -1 for all that is not of it.
        text: the text.
    """

    windows: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    text: str

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Join the windows: each token's outputs come from the window that shows most around it.

        Returns:
            (tokens, outputs) and (tokens, 2), in the order of the text.
        """
        best: dict[tuple[int, int, int], tuple[int, np.ndarray]] = {}
        for logits, offsets in zip(self.windows, self.offsets, strict=True):
            inside = np.flatnonzero(offsets[:, 0] >= 0)
            key = (-1, -1, 0)
            for place, token in enumerate(inside):
                start, end = int(offsets[token, 0]), int(offsets[token, 1])
                # tokens of the bytes of one character all stand where it stands: they are told apart by their order
                key = (start, end, key[2] + 1 if key[:2] == (start, end) else 0)
                around = min(place, len(inside) - 1 - place)
                if key not in best or best[key][0] < around:
                    best[key] = (around, logits[token])
        order = sorted(best)
        if not order:
            return np.empty((0, self.windows[0].shape[1])), np.empty((0, 2), np.int64)
        return np.stack([best[key][1] for key in order]), np.asarray([key[:2] for key in order], np.int64)


def units(text: str, offsets: np.ndarray) -> np.ndarray:
    """Return the number of the word that each token belongs to: letters and digits without a gap.

    A Chinese, Japanese or Korean character is a word of its own, and so is every other sign: their tokens are labelled
    one by one, whatever the tokenizer calls a word.

    Args:
        text: that the tokens are of.
        offsets: (tokens, 2) characters.
    """
    numbers = np.zeros(len(offsets), np.int64)
    for token in range(1, len(offsets)):
        before, start = int(offsets[token - 1, 1]), int(offsets[token, 0])
        joined = before == start and 0 < start < len(text) and _of_a_word(text[start - 1]) and _of_a_word(text[start])
        numbers[token] = numbers[token - 1] + (not joined)
    return numbers


def _of_a_word(character: str) -> bool:
    return character.isalnum() and not is_ideograph(character) and not is_hangul(character)


def tight(text: str, offsets: np.ndarray) -> np.ndarray:
    """Return offsets without spaces, and without what the next token stands for too.

    Some tokenizers count the space to the word behind it, or give the mark of a word's beginning a token of its own and
    the first character with it; bytes of one character all stand for all of it, and the last one keeps it.
    """
    found = offsets.copy()
    found[:-1, 1] = np.maximum(found[:-1, 0], np.minimum(found[:-1, 1], found[1:, 0]))
    for row in found:
        while row[0] < row[1] and text[row[0]].isspace():
            row[0] += 1
        while row[1] > row[0] and text[row[1] - 1].isspace():
            row[1] -= 1
    return found


def bio(labels: Sequence[str]) -> list[str]:
    """Return the tags of a tagger in the order of its outputs: O, then B- and I- of each type (Ramshaw & Marcus)."""
    return ["O", *(f"{place}-{label}" for label in labels for place in "BI")]


def find_spans(found: TokenLogits, labels: Sequence[str]) -> list[FoundSpan]:
    """Read spans off a tagger's outputs: each word has the tag of its first token (Devlin et al. 2019, section 5.3).

    An I- that continues nothing begins a span.

    Args:
        found: outputs of `bio(labels)`.
        labels: types of spans.
    """
    logits, offsets = found.merged()
    if not len(logits):
        return []
    offsets = tight(found.text, offsets)
    kept = offsets[:, 0] < offsets[:, 1]  # a token that stands for a space alone is no word
    logits, offsets = logits[kept], offsets[kept]
    numbers = units(found.text, offsets)
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(first[1:], len(numbers)) - 1
    chances = probabilities(logits[first], "single")
    tags = chances.argmax(-1)
    spans: list[list[float]] = []  # start, end, type, sum of probabilities, words
    before = -1
    for word, tag in enumerate(tags):
        kind = -1 if tag == 0 else (int(tag) - 1) // 2
        begins = tag % 2 == 1 or kind != before
        if kind >= 0:
            chance = float(chances[word, tag])
            if begins:
                spans.append([int(offsets[first[word], 0]), 0, kind, 0.0, 0])
            spans[-1][1] = int(offsets[ends[word], 1])
            spans[-1][3] += chance
            spans[-1][4] += 1
        before = kind
    return [
        FoundSpan(int(a), int(b), labels[int(kind)], found.text[int(a) : int(b)], total / count)
        for a, b, kind, total, count in spans
    ]


def find_answer(found: TokenLogits) -> FoundSpan:
    """Return the best span of a text, with its logits over those of "no answer" as its score.

    Start and end are chosen together in each window, and the best window counts (Devlin et al. 2019, section 4.3). The
    first token, which is no part of the text, stands for "no answer".

    Args:
        found: outputs (tokens, 2), of the start and of the end.
    """
    best = FoundSpan(0, 0, "", "", -np.inf)
    for logits, offsets in zip(found.windows, found.offsets, strict=True):
        inside = np.flatnonzero(offsets[:, 0] >= 0)
        if not len(inside):
            continue
        start, end = logits[inside, 0], logits[inside, 1]
        longest = min(MAX_ANSWER_TOKENS, len(inside))
        padded = np.concatenate([end, np.full(longest - 1, -np.inf)])
        sums = start[:, None] + np.lib.stride_tricks.sliding_window_view(padded, longest)  # (start, tokens after it)
        a, length = np.unravel_index(int(sums.argmax()), sums.shape)
        b = a + length
        score = float(sums[a, length] - logits[0].sum())
        if score > best.score:
            places = tight(found.text, offsets[inside[[int(a), int(b)]]])
            first, last = int(places[0, 0]), int(places[1, 1])
            best = FoundSpan(first, last, "", found.text[first:last], score)
    return best
