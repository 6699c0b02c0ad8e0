"""`Run`: one training as a step of a bundle's history: kept while it runs, told, recorded.

Fine-tuning, pretraining, contrastive training and cloze differ in what learns from what; what happens around `fit` is
the same, and stands here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from louver.bundle import Bundle, Record
from louver.training.diagnosis import Finding, of_end
from louver.training.fit import Fit, Judge, Pupil, Rows, Say, fit
from louver.training.judgement import Judgement
from louver.training.learner import Objective
from louver.training.options import Schedule
from louver.training.resume import places
from louver.versions import versions


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        step: its name in the history.
        source: the bundle that it begins with.
        into: the bundle that it makes.
        options: how to train.
        progress: show progress bars.
        say: told the score of every epoch, and what is wrong.
        began: when the step began, by `time.perf_counter`.
    """

    step: str
    source: Bundle
    into: Path
    options: Schedule
    progress: bool
    say: Say
    began: float = field(default_factory=time.perf_counter)

    def train(
        self,
        pupil: Pupil,
        objective: Objective,
        rows: Rows,
        judge: Judge[Pupil],
        *,
        start: Judgement | None,
        learned: dict[str, Any],
        **how: Any,
    ) -> Fit:
        """Train, or go on with an interrupted run of the same outcome.

        Args:
            pupil: what learns.
            objective: loss and outputs of a batch.
            rows: to learn from.
            judge: judges the pupil as it stands.
            start: judgement before training, if there was one.
            learned: what decides the outcome beside parent and options: fingerprints of the data, what is learned.
            how: as `fit`.

        Raises:
            TrainingError: if the loss stops being a number before an epoch is over, an interrupted run had another
                key, or another process trains the same bundle.
        """
        key = {"step": self.step, "parent": self.source.digest, "options": self.options.model_dump(mode="json")}
        with places(self.into, {**key, **learned}) as where:
            shared: dict[str, Any] = {"places": where, "progress": self.progress, "say": self.say}
            return fit(pupil, objective, rows, judge, self.options, start=start, **shared, **how)

    def record(
        self, result: Fit, findings: Sequence[Finding], *, settings: dict[str, Any] | None = None, **numbers: Any
    ) -> Record:
        """Say what is wrong, and return the entry for the bundle's history.

        Args:
            result: of the training.
            findings: what the diagnosis found.
            settings: beside the options.
            numbers: beside epochs, steps, curves and the diagnosis.
        """
        findings = [*of_end(result.ended), *findings]
        for one in findings:
            self.say(f"found: {one}")
        watched = {
            "epochs": result.history,
            "steps": result.steps,
            "curves": result.log.to_json(),
            "diagnosis": [one.to_json() for one in findings],
        }
        return Record(
            step=self.step,
            settings={**self.options.model_dump(), **(settings or {})},
            parents=[self.source.digest],
            numbers={**numbers, **watched},
            seconds=time.perf_counter() - self.began,
            versions=versions(),
        )
