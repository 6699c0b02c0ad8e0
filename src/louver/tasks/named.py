"""Tasks by name: from a training set, and from a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from louver.bundle import Card
from louver.errors import DataError, OptionError, unknown
from louver.tasks.answer import Answering
from louver.tasks.classify import Classification
from louver.tasks.data import Example
from louver.tasks.tag import Tagging
from louver.tasks.task import TASKS, Task


def learn(name: str, examples: Sequence[Example]) -> Task:
    """Find out what a training set asks for.

    Args:
        name: one of `TASKS`.
        examples: of training.

    Raises:
        OptionError: if there is no such task.
        DataError: if the labels do not make one, or some rows are pairs and others are not.
    """
    makers: dict[str, Callable[[Sequence[Example]], Task]] = {
        "classify": Classification.of,
        "tag": Tagging.of,
        "answer": Answering.of,
    }
    if name not in makers:
        raise OptionError(unknown("task", name, TASKS))
    if len({bool(example.pair) for example in examples}) > 1:
        raise DataError("some rows have a second text and others have none; mend the rows, or read one text")
    return makers[name](examples)


def task_of(card: Card) -> Task:
    """Return the task that a card names.

    Raises:
        OptionError: if the bundle gives embeddings.
    """
    if card.task == "tag":
        return Tagging(tuple(card.labels))
    if card.task == "answer":
        return Answering()
    if card.task != "classify" or card.kind is None:
        raise OptionError("the bundle gives embeddings, which have no labels to score; run 'louver finetune' first")
    return Classification(card.kind, tuple(card.labels))
