"""Who stands in a report, and how each one answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from louver.bundle import Bundle
from louver.measure.baselines import Baseline
from louver.measure.baselines import Kind as BaselineKind
from louver.measure.evaluate import Answers
from louver.runtime import Predictor
from louver.text import cutting

TEST_TEXTS = "test.jsonl"
"""File of a run directory with the texts and labels that the report was made on."""


@dataclass(frozen=True)
class Contender:
    """One row of a report.

    Attributes:
        name: unique in the report.
        kind: "baseline" or "bundle".
        bundle: its weights and card.
        accepted: False if a gate refused the step.
        baseline: how a baseline treats long texts.
        max_length: tokens a call of a baseline, specials included.
        batch_size: texts a call of a baseline.
        thresholds: instead of the card's, for pooled windows.
        note: what else there is to say.
    """

    name: str
    kind: Literal["baseline", "bundle"]
    bundle: Bundle
    accepted: bool = True
    baseline: BaselineKind | None = None
    max_length: int = 0
    batch_size: int = 8
    thresholds: tuple[float, ...] | None = None
    note: str = ""

    def open(self) -> Answers:
        """Return what answers."""
        if self.baseline is not None:
            return Baseline(self.bundle, self.baseline, max_length=self.max_length, batch_size=self.batch_size)
        return Predictor(self.bundle, truncation=cutting(self.bundle.card.truncation))

    def size_mb(self) -> float:
        """Return the size of what serving needs."""
        return self.bundle.size() / 1e6

    def command(self, directory: Path, metric: str) -> str:
        """Return the call that gives this contender's score again.

        Args:
            directory: run directory, which holds the test texts.
            metric: name of the score.
        """
        parts = ["louver evaluate", self.bundle.path.as_posix(), (directory / TEST_TEXTS).as_posix()]
        parts += [f"--metric {metric}"]
        if self.baseline is None:
            return " ".join([*parts, f"--truncate {cutting(self.bundle.card.truncation)}"])
        parts += [f"--baseline {self.baseline} --max-length {self.max_length} --batch-size {self.batch_size}"]
        return " ".join([*parts, *([f"--thresholds {','.join(map(str, self.thresholds))}"] if self.thresholds else [])])


def answer_in_own_process(contender: Contender, batches: Sequence[Sequence[str]]) -> Iterator[None]:
    """Open a contender and answer, a batch a step; run in a fresh process to see its memory."""
    opened = contender.open()
    for texts in batches:
        opened.logits(texts)
        yield


def where(contender: Contender, root: Path) -> str:
    """Return the bundle's path from the run directory."""
    path = contender.bundle.path
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
