"""Labelled rows: read, checked, and split into training, validation and test."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from louver.decode import Span
from louver.errors import DataError, TextError, need_extra, unknown
from louver.tasks.spans import read_answers, read_spans, read_tagged_words
from louver.text import Row, Text, check, read_rows

Label = str | float | tuple[str, ...] | tuple[Span, ...]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
DROPPABLE = ("duplicates", "empty", "rare", "unseen")


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


@dataclass(frozen=True)
class Splits:
    """Three disjoint lists. Everything is chosen on validation; test is read once, for the report."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]
    dropped: dict[str, int] = field(default_factory=dict)

    def part(self, name: Part) -> list[Example]:
        """Return one of the three lists by its name."""
        found: list[Example] = getattr(self, name)
        return found


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


def make_splits(
    found: Sequence[tuple[Example, str]],
    *,
    seed: int = 0,
    shares: tuple[float, float] = (0.15, 0.15),
    by: Literal["random", "group", "date"] = "random",
    drop: Sequence[str] = (),
    limits: Mapping[Part, int] | None = None,
) -> Splits:
    """Split examples into three parts, and check that the parts can be trusted.

    Parts that the rows name are kept; missing ones are cut from training.

    Args:
        found: what `read_examples` gave.
        seed: of the shuffle.
        shares: validation and test, as shares of what they are cut from.
        by: "random"; "group" keeps each group in one part; "date" puts the latest rows into test, those before
            into validation, and never parts the rows of one moment.
        drop: faults to drop instead of refusing: any of duplicates, empty, rare, unseen.
        limits: keep the first so many shuffled examples of some parts, before the parts are checked.

    Raises:
        DataError: if a share is out of range, a test row is also in training, a group stands in two parts, a label of
            test or validation is unseen in training, or a class has one example.
    """
    if min(shares) <= 0 or sum(shares) >= 1:
        raise DataError(f"shares of validation and test must be positive and leave training some, got {shares}")
    for word in drop:
        if word not in DROPPABLE:
            raise DataError(unknown("fault to drop", word, DROPPABLE))
    dropped: Counter[str] = Counter()
    kept = [(e, part) for row, (e, part) in enumerate(found, 1) if _readable(e, row, drop, dropped)]
    parts: dict[str, list[Example]] = {name: [e for e, part in kept if part == name] for name in PARTS}
    pool = parts["train"] + [e for e, part in kept if not part]
    for name, share in (("test", shares[1]), ("validation", shares[0])):
        if not parts[name]:
            pool, parts[name] = _cut(pool, share, seed, by)
    parts["train"] = pool
    rng = np.random.default_rng(seed)
    shuffled = {name: [rows[i] for i in rng.permutation(len(rows))] for name, rows in parts.items()}
    caps: dict[str, int] = {str(name): limit for name, limit in (limits or {}).items()}
    kept_parts = {name: rows[: caps.get(name)] for name, rows in shuffled.items()}
    if by == "group":
        _refuse_shared_groups(kept_parts)
    cleaned = _with_learnable_labels(_without_shared(kept_parts, drop, dropped), drop, dropped)
    return Splits(cleaned["train"], cleaned["validation"], cleaned["test"], dict(dropped))


def _readable(example: Example, row: int, drop: Sequence[str], dropped: Counter[str]) -> bool:
    try:
        check(example.text)
        if example.pair:
            check(example.pair)
    except TextError as error:
        if "empty" not in drop:
            raise DataError(f"row {row} cannot be read: {error}; or drop such rows with drop: [empty]") from error
        dropped["empty"] += 1
        return False
    return True


def _cut(pool: list[Example], share: float, seed: int, by: str) -> tuple[list[Example], list[Example]]:
    """Cut a share off a list: by chance, by whole groups, or the latest."""
    count = max(1, round(len(pool) * share))
    rng = np.random.default_rng([seed, len(pool)])
    if by == "date":
        ordered = sorted(pool, key=lambda e: _date(e.group))
        first = _date(ordered[-count].group)
        return [e for e in ordered if _date(e.group) < first], [e for e in ordered if _date(e.group) >= first]
    if by == "group":
        sizes = Counter(e.group for e in pool)
        taken: set[str] = set()
        for name in rng.permutation(sorted(sizes)):
            if sum(sizes[g] for g in taken) >= count:
                break
            taken.add(str(name))
        return [e for e in pool if e.group not in taken], [e for e in pool if e.group in taken]
    order = rng.permutation(len(pool))
    return [pool[i] for i in order[count:]], [pool[i] for i in order[:count]]


def _date(written: str) -> datetime:
    try:
        found = datetime.fromisoformat(written)
    except ValueError as error:
        raise DataError(f"date {written!r} is not ISO 8601; write it as 2017-03-09, which also sorts") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _refuse_shared_groups(parts: dict[str, list[Example]]) -> None:
    """Refuse a group that stands in two parts, as it may where the rows name some parts themselves."""
    owner: dict[str, str] = {}
    for name in PARTS:
        for example in parts[name]:
            if owner.setdefault(example.group, name) != name:
                raise DataError(
                    f"group {example.group!r} stands in {owner[example.group]} and {name}; "
                    "name the part of all its rows, or of none"
                )


def _without_shared(
    parts: dict[str, list[Example]], drop: Sequence[str], dropped: Counter[str]
) -> dict[str, list[Example]]:
    """Refuse or drop texts that stand in two parts."""
    seen: set[Text] = set()
    clean: dict[str, list[Example]] = {}
    for name in PARTS:  # a text belongs to the first part that has it
        shared = [e for e in parts[name] if e.input in seen]
        if shared and "duplicates" not in drop:
            raise DataError(
                f"{len(shared)} {name} rows are also in another part, the first is {shared[0].text[:60]!r}; "
                "remove them, or say drop: [duplicates]"
            )
        rows: list[Example] = []
        for example in parts[name]:
            if "duplicates" in drop and example.input in seen:
                dropped["duplicates"] += 1
                continue
            rows.append(example)
            if "duplicates" in drop:
                seen.add(example.input)
        seen |= {e.input for e in rows}
        clean[name] = rows
    return clean


def _with_learnable_labels(
    parts: dict[str, list[Example]], drop: Sequence[str], dropped: Counter[str]
) -> dict[str, list[Example]]:
    """Refuse or drop labels that training has once or never."""
    clean = dict(parts)
    if "rare" not in drop and (rare := _rare_names(clean["train"])):
        raise DataError(f"class {min(rare)!r} has one training example; give it more, or say drop: [rare]")
    taught = {label for e in clean["train"] for label in names_of(e.label)}
    while rare := _rare_names(clean["train"]):  # a row with several labels takes its others with it
        rows = [e for e in clean["train"] if not set(names_of(e.label)) & rare]
        dropped["rare or unseen"] += len(clean["train"]) - len(rows)
        clean["train"] = rows
    known = {label for e in clean["train"] for label in names_of(e.label)}
    for name in PARTS:
        rows = [e for e in clean[name] if known.issuperset(names_of(e.label))]
        unseen = sorted({label for e in clean[name] for label in names_of(e.label)} - taught)
        if unseen and "unseen" not in drop:
            raise DataError(
                f"label {unseen[0]!r} of a {name} row never occurs in training; check the split, or say drop: [unseen]"
            )
        dropped["rare or unseen"] += len(clean[name]) - len(rows)
        clean[name] = rows
        if not rows:
            raise DataError(f"no {name} rows are left; give more rows or other shares")
    return clean


def _rare_names(examples: Sequence[Example]) -> set[str]:
    """Return the names that occur once."""
    counts = Counter(label for e in examples for label in names_of(e.label))
    return {label for label, count in counts.items() if count < 2}


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
