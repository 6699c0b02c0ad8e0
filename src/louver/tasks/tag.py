"""Tagging as a value: spans of raw text to tags of words, and back (named entities, terms, redactions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from louver.decode import Span, bio, find_spans, units
from louver.decode.tokens import tight
from louver.errors import DataError, OptionError
from louver.tasks.data import Example, objects
from louver.tasks.metrics import Metric
from louver.tasks.task import Batch, Feature, TaskName
from louver.text.masking import IGNORED


@dataclass(frozen=True)
class Tagging:
    """Which stretches of a text have which name; they do not overlap.

    Labels stand at characters, so that texts are read as they are written: a tokenizer's pieces are aligned by their
    offsets, and nobody has to split Chinese into characters first. A word (see `louver.decode.units`) is taught and
    answered by its first token.

    Attributes:
        labels: types of spans, sorted.
    """

    labels: tuple[str, ...]
    name: ClassVar[TaskName] = "tag"
    kind: ClassVar[str] = "tag"
    per_token: ClassVar[bool] = True

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Tagging:
        """Find the types of a training set.

        Raises:
            DataError: if it has no span.
        """
        labels = {span.label for example in examples for span in _spans(example)}
        if not labels:
            raise DataError('no training row has a span; tagging needs some, as [[0, 5, "person"]]')
        return cls(tuple(sorted(labels)))

    @property
    def outputs(self) -> int:
        """O, and B- and I- of each type."""
        return len(bio(self.labels))

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Return each text's spans, (texts,) objects."""
        for example in examples:
            for span in _spans(example):
                if span.label not in self.labels:
                    raise DataError(
                        f"span type {span.label!r} was not in training, which had: {', '.join(self.labels)}"
                    )
        return objects([_spans(example) for example in examples])

    def teach(self, target: Any, text: str, offsets: np.ndarray | None) -> Feature:
        """Return the tag of each word's first token; all else is ignored by the loss."""
        assert offsets is not None
        tags = np.full(len(offsets), IGNORED, np.int64)
        inside = np.flatnonzero(offsets[:, 0] >= 0)
        places = tight(text, offsets[inside])
        inside, places = inside[places[:, 0] < places[:, 1]], places[places[:, 0] < places[:, 1]]
        numbers = units(text, places)
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.append(first[1:], len(numbers)) - 1
        for begin, end in zip(first, ends, strict=True):
            tags[inside[begin]] = self._tag(target, int(places[begin, 0]), int(places[end, 1]))
        return {"tags": tags}

    def _tag(self, spans: Sequence[Span], start: int, end: int) -> int:
        """Return the tag of the word that stands at these characters."""
        for span in spans:
            if span.start < end and start < span.end:
                return 1 + 2 * self.labels.index(span.label) + (span.start < start)
        return 0

    def loss(self, outputs: Tensor, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy over words."""
        return F.cross_entropy(outputs.flatten(0, 1), batch["tags"].flatten(), ignore_index=IGNORED)

    def class_weights(self, examples: Sequence[Example]) -> np.ndarray:
        """Refuse: tags are no classes of texts."""
        raise OptionError("class weights are for classifications; leave them out for tags")

    def decisions(self, answers: np.ndarray, thresholds: Sequence[float] = ()) -> np.ndarray:
        """Return the spans that were found, (texts,) objects."""
        return objects([tuple(Span(*span[:3]) for span in find_spans(one, self.labels)) for one in answers])

    def tune_thresholds(self, answers: np.ndarray, targets: np.ndarray, score: Metric) -> list[float]:
        """Return none: tags need no thresholds."""
        return []


def _spans(example: Example) -> tuple[Span, ...]:
    spans = example.label
    if not isinstance(spans, tuple) or not all(isinstance(span, Span) for span in spans):
        raise DataError(f"tagging needs spans, and a row has {example.label!r}; read the rows for the task 'tag'")
    return spans  # type: ignore[return-value]
