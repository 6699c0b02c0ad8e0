"""Examples split into training, validation and test, and what must hold for the parts to be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from louver.errors import DataError, TextError, unknown
from louver.tasks.data import PARTS, Example, Part, names_of
from louver.text import Text, check

DROPPABLE = ("duplicates", "empty", "rare", "unseen")


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
    if seed < 0:
        raise DataError(f"seed must not be negative, got {seed}; 0 is the default")
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


def _dropping(fault: str) -> str:
    return f"leave such rows out with --drop {fault} (in a recipe, drop: [{fault}])"


def _readable(example: Example, row: int, drop: Sequence[str], dropped: Counter[str]) -> bool:
    try:
        check(example.text)
        if example.pair:
            check(example.pair)
    except TextError as error:
        if "empty" not in drop:
            raise DataError(f"row {row} cannot be read: {error}; or {_dropping('empty')}") from error
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
        if first == _date(ordered[0].group):
            raise DataError(f"no row is older than {ordered[0].group}; dates that are all alike split nothing")
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
                f"remove them, or {_dropping('duplicates')}"
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
        raise DataError(f"class {min(rare)!r} has one training example; give it more, or {_dropping('rare')}")
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
                f"label {unseen[0]!r} of a {name} row never occurs in training; check the split, or "
                f"{_dropping('unseen')}"
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
