"""`examine`: what every training of a bundle found, and which labels of its rows are doubtful (`louver doctor`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.decode import probabilities
from louver.errors import OptionError
from louver.runtime import Predictor
from louver.tasks import Classification, Example, Splits, Task, task_of
from louver.text import cutting
from louver.training.diagnosis import Finding


@dataclass(frozen=True)
class Doubt:
    """A label that may be wrong.

    Attributes:
        text: its text.
        label: as it stands in the rows.
        answer: what a model that never saw it is sure of.
    """

    text: str
    label: str
    answer: str


def examine(bundle: Bundle | str | Path, data: Splits | None = None) -> tuple[list[Finding], list[Doubt]]:
    """Say what is wrong with a bundle's training.

    Args:
        bundle: that was trained.
        data: the rows that it was trained on, split as then; its validation and test texts, which the model never saw,
            are answered, and their labels doubted where the model is sure of others.

    Returns:
        What was found by every step of its history, and now; and doubtful labels, the surest first.

    Raises:
        OptionError: if no step of its history was a training, or rows are given that have not one label each.
    """
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    steps = [record for record in source.card.history if "diagnosis" in record.numbers]
    if not steps:
        raise OptionError(f"{source.path} was not trained by this louver; its history has no step that was watched")
    found = [Finding(**one) for record in steps for one in record.numbers["diagnosis"]]
    if data is None:
        return found, []
    task = task_of(source.card)
    if task.kind != "single":
        raise OptionError("doubtful labels are looked for where every text has one label; leave the rows out")
    rows = [*data.validation, *data.test]
    with Predictor(source, truncation=cutting(source.card.truncation)) as predictor:
        logits = predictor.logits([row.input for row in rows])
    order, noise = doubtful_labels(task, rows, logits)
    doubts = [
        Doubt(
            " | ".join(filter(None, (rows[i].text, rows[i].pair))),
            str(rows[i].label),
            task.labels[int(logits[i].argmax())],
        )
        for i in order
    ]
    return [*(one for one in found if one.name != "label noise" or not noise), *noise], doubts


def doubtful_labels(task: Task, examples: Sequence[Example], logits: np.ndarray) -> tuple[list[int], list[Finding]]:
    """Look for labels that a model which never saw them is sure are others (Northcutt et al. 2021, confident learning).

    Args:
        task: a classification with one label.
        examples: texts that the answers were not trained on.
        logits: answers.

    Returns:
        Indices of doubtful rows, the surest first; and a finding if they are many.
    """
    if not isinstance(task, Classification) or task.kind != "single":
        return [], []
    truth = task.targets(examples)
    chances = probabilities(logits, "single")
    own, best = chances[np.arange(len(truth)), truth], chances.max(1)
    # a class's usual certainty is its bar, so that hard classes are not doubted for being hard
    bars = np.asarray([chances[truth == c, c].mean() if (truth == c).any() else 1.0 for c in range(len(task.labels))])
    doubted = np.flatnonzero((chances.argmax(1) != truth) & (best >= np.maximum(bars[chances.argmax(1)], 0.8)))
    order = doubted[np.argsort(own[doubted])]
    share = _noise(logits, truth)
    if share <= 0.06 or not len(order):
        return order.tolist(), []
    first = examples[order[0]]
    evidence = f"about {share:.0%} of {len(truth)} labels seem to be wrong: a model that never saw them is as sure of "
    evidence += "other ones as it is where it is right; first "
    evidence += (
        f"{first.text[:60]!r}, labelled {first.label!r}, answered {task.labels[int(chances[order[0]].argmax())]!r}"
    )
    remedy = "Read the rows that louver doctor lists, and mend or drop them; many of one kind may be a shifted column"
    return order.tolist(), [Finding("label noise", evidence, remedy)]


def _noise(logits: np.ndarray, truth: np.ndarray) -> float:
    """Estimate the share of wrong labels from how sure a model is where it contradicts them.

    A model is as sure of a wrongly labelled text as of others: half of those contradictions are above the middle of the
    answers it gives rightly. Of its own mistakes a quarter is at most, even where it is far too sure of everything
    (measured: docs/results/training.md). Between the two lies the share of contradictions that are the label's fault.
    """
    answers = logits.argmax(1)
    ordered = np.sort(logits, 1)
    margins, wrong = ordered[:, -1] - ordered[:, -2], answers != truth
    middle = {c: np.median(margins[~wrong & (answers == c)]) for c in np.unique(answers[~wrong])}
    bars = np.asarray([middle.get(c, np.inf) for c in answers])
    count, sure = int(wrong.sum()), int((wrong & (margins >= bars)).sum())
    own = 0.25 * count
    if sure < own + math.sqrt(0.75 * own):  # within what a quarter gives by chance
        return 0.0
    return min((sure - own) / 0.25, count) / len(truth)
