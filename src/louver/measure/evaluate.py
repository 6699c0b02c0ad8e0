"""How well a bundle answers labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from louver.bundle import Bundle
from louver.errors import OptionError
from louver.measure.intervals import Score, score
from louver.runtime import Predictor
from louver.tasks import Example, metric, task_of
from louver.text import Text, cutting


class Answers(Protocol):
    """Anything that gives raw outputs for texts: a `Predictor`, or a baseline."""

    def logits(self, texts: Sequence[Text]) -> np.ndarray:
        """Return (n, outputs), or n objects `TokenLogits`."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """A bundle's answers to labelled texts.

    Attributes:
        metric: name of the score.
        score: with its interval.
        truth: targets of the texts.
        decisions: in the form of the targets.
        logits: raw outputs.
    """

    metric: str
    score: Score
    truth: np.ndarray
    decisions: np.ndarray
    logits: np.ndarray


def evaluate(
    bundle: Bundle,
    examples: Sequence[Example],
    *,
    metric_name: str | None = None,
    truncation: str | None = None,
    answers: Answers | None = None,
    thresholds: Sequence[float] | None = None,
    seed: int = 0,
) -> Evaluation:
    """Answer labelled texts and score the answers.

    Args:
        bundle: of a task; its card names labels and thresholds.
        examples: labelled texts.
        metric_name: the kind's default if None.
        truncation: the bundle's own if None; ``error`` becomes ``head``, so that every text counts.
        answers: what answers, if not the bundle by itself.
        thresholds: other thresholds than the card's.
        seed: of the interval's resampling.
    """
    card = bundle.card
    task = task_of(card)
    name, scorer = metric(task.kind, metric_name)
    if thresholds is not None and len(thresholds) != len(card.thresholds):
        raise OptionError(f"the bundle has {len(card.thresholds)} thresholds, got {len(thresholds)}; give one a label")
    truth = task.targets(examples)
    texts = [e.input for e in examples]
    if answers is None:
        rule = truncation or cutting(card.truncation)
        with Predictor(bundle, truncation=rule) as predictor:
            logits = predictor.logits(texts)
    else:
        logits = answers.logits(texts)
    decisions = task.decisions(logits, card.thresholds if thresholds is None else thresholds)
    return Evaluation(name, score(scorer, truth, decisions, seed=seed), truth, decisions, logits)


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Return the share of texts on which two models decide the same; of numbers, their correlation."""
    if a.dtype.kind == "f" and a.ndim == 1:
        return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else float(np.allclose(a, b))
    same = np.asarray(a == b)
    return float((same.all(-1) if same.ndim > 1 else same).mean())
