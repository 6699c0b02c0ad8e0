"""Labelled rows, read from files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from louver.decode import Span
from louver.errors import DataError, need_extra, unknown
from louver.tasks.spans import read_answers, read_spans, read_tagged_words
from louver.text import Row, Text, read_rows

Label = str | float | tuple[str, ...] | tuple[Span, ...]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Example:
    """A text and its label: a name, a tuple of names (several labels), a number, or spans."""

    text: str
    label: Label
    group: str = ""
    """The value of the column that splits go by."""
    pair: str = ""
    """The second text, of tasks that read pairs."""

    @property
    def input(self) -> Text:
        """What a model reads."""
        return (self.text, self.pair) if self.pair else self.text


@dataclass(frozen=True)
class Columns:
    """Where rows keep what louver reads.

    Attributes:
        text: column of the text.
        label: column of the label; a list, or text with ``|`` between labels, means several.
        split: column that names train, validation and test; empty if there is none.
        group: column whose values must not be shared between the parts; empty if there is none.
        date: column to split by in time, latest to test; empty if there is none.
        labels: "names" or "numbers"; "auto" takes numbers if every label is one and some have a fraction (``3.5``),
            because ``0`` and ``1.0`` are as often names of classes.
        pair: column of the second text; empty if there is none.
        words: of tagging, column of a text's words, for rows that have them instead of a text.
        tags: of tagging, column of the words' tags.
    """

    text: str = "text"
    label: str = "label"
    split: str = ""
    group: str = ""
    date: str = ""
    labels: str = "auto"
    pair: str = ""
    words: str = "tokens"
    tags: str = "tags"

    @classmethod
    def of(cls, task: str, **named: str | None) -> Columns:
        """Return the columns of a task, as its public data sets name them where no name is given.

        Args:
            task: one of `TASKS`.
            named: columns by name; None and nothing mean the usual one.
        """
        usual = {"tag": {"label": "spans"}, "answer": {"text": "question", "label": "answers", "pair": "context"}}
        return cls(**{**usual.get(task, {}), **{key: value for key, value in named.items() if value is not None}})


def read_examples(path: str | Path, columns: Columns, task: str = "classify") -> list[tuple[Example, str]]:
    """Read a CSV, TSV, JSONL or Parquet file, or a `datasets` directory.

    Args:
        path: the file or directory.
        columns: where rows keep what is read.
        task: "classify", "tag" (spans, or words with tags) or "answer".

    Returns:
        Each example with the part its row names, or "" if rows name none.

    Raises:
        DataError: if a column is missing or a label has no meaning.
    """
    if columns.labels not in ("auto", "names", "numbers"):
        raise DataError(unknown("meaning of labels", columns.labels, ("auto", "names", "numbers")))
    rows = list(_datasets_rows(Path(path)) if Path(path).is_dir() else read_rows(path))
    if not rows:
        raise DataError(f"{path} has no rows")
    meaning: Callable[[object, str], Label] = _name
    if task == "classify" and _are_numbers([row.get(columns.label) for row in rows], columns.labels):
        meaning = _number
    found = []
    for number, row in enumerate(rows, 1):
        where = f"{path}, row {number}"
        tagged = task == "tag" and columns.text not in row and columns.words in row
        wanted = (columns.words, columns.tags) if tagged else (columns.text, columns.label, columns.pair)
        for column in (*wanted, columns.split, columns.group, columns.date):
            if column and column not in row:
                raise DataError(f"{where}: no column {column!r}; it has: {', '.join(map(str, row))}")
        if tagged:
            text, label = read_tagged_words(row[columns.words], row[columns.tags], where)
            example = Example(text, label)
        else:
            example = _example(row, columns, task, meaning, where)
        part = str(row[columns.split]) if columns.split else str(row.get("__split__", ""))
        group = str(row[columns.group or columns.date]) if columns.group or columns.date else ""
        found.append((replace(example, group=group), _part(part)))
    return found


def _example(row: Row, columns: Columns, task: str, meaning: Callable[[object, str], Label], where: str) -> Example:
    text, pair = ("" if row.get(name) is None else str(row[name]) for name in (columns.text, columns.pair or ""))
    if task == "tag":
        return Example(text, read_spans(_parsed(row[columns.label]), text, where))
    if task == "answer":
        return Example(text, read_answers(_parsed(row[columns.label]), pair, where), pair=pair)
    return Example(text, meaning(row[columns.label], where), pair=pair)


def _parsed(value: object) -> object:
    """Read what a CSV cell holds as JSON."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def _datasets_rows(directory: Path) -> Iterable[Row]:
    need_extra("train", "datasets")
    import datasets

    try:
        loaded = datasets.load_from_disk(str(directory))
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{directory} is no datasets directory; make one with Dataset.save_to_disk") from error
    if isinstance(loaded, datasets.DatasetDict):
        return ({**row, "__split__": name} for name, part in loaded.items() for row in _with_class_names(part))
    return _with_class_names(loaded)


def _with_class_names(dataset: Any) -> Iterable[Row]:
    """Yield rows with the names of their classes in the place of `datasets` class numbers."""
    import datasets

    named = {name: kind for name, kind in dataset.features.items() if isinstance(kind, datasets.ClassLabel)}
    lists = {
        name: kind.feature
        for name, kind in dataset.features.items()
        if isinstance(getattr(kind, "feature", None), datasets.ClassLabel)
    }
    for row in dataset:
        ones = {k: kind.int2str(row[k]) for k, kind in named.items() if row[k] is not None and row[k] >= 0}
        many = {k: kind.int2str(row[k]) for k, kind in lists.items() if row[k] is not None}
        yield {**row, **ones, **many}


def _are_numbers(labels: Sequence[object], wanted: str) -> bool:
    if wanted != "auto":
        return wanted == "numbers"
    return all(_is_written_number(v) for v in labels) and any(float(v) % 1 for v in labels)  # type: ignore[arg-type]


def _is_written_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):
        return False


def _number(value: object, where: str) -> float:
    if not _is_written_number(value):
        raise DataError(f"{where}: label {value!r} is no finite number; drop or mend the row")
    return float(value)  # type: ignore[arg-type]


def _name(value: object, where: str) -> str | tuple[str, ...]:
    """Read one name, or several: a list, or text with ``|`` between them."""
    if isinstance(value, list | tuple):
        return tuple(sorted({str(v) for v in value}))
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    if isinstance(value, str) and value:
        return tuple(sorted(set(value.split("|")))) if "|" in value else value
    raise DataError(f"{where}: label {value!r} is neither a name, a list of names nor a number; drop or mend the row")


def _part(name: str) -> str:
    known = {"": "", "train": "train", "training": "train", "validation": "validation", "valid": "validation"}
    known |= {"dev": "validation", "val": "validation", "test": "test"}
    if name not in known:
        raise DataError(unknown("split", name, PARTS))
    return known[name]


def names_of(label: Label) -> tuple[str, ...]:
    """Return a label's names: of spans their types; a number has none, and neither has an answer."""
    if isinstance(label, tuple):
        return tuple(sorted({item.label if isinstance(item, Span) else item for item in label} - {""}))
    return (label,) if isinstance(label, str) else ()


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values as an array of objects, so that metrics can resample them."""
    found = np.empty(len(values), object)
    found[:] = values
    return found
