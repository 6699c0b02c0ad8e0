"""Whole files through a predictor, a chunk of rows at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from louver.bundle import Card
from louver.errors import DataError, OptionError
from louver.runtime.predictor import Predictor
from louver.storage import write_text
from louver.text import Row, RowWriter, scan_rows
from louver.text.rows import draft_of
from louver.versions import versions

ANSWERS = (
    *("label", "labels", "value", "spans", "answer", "answer_score", "embedding", "scores"),
    *("tokens_read", "tokens_cut", "error"),
)
"""Columns of an answer, as `Prediction` names them; CSV and Parquet get all of them in every row."""


_PEEKED = 1000
"""Readable rows that are looked at for their columns before anything is written."""


@dataclass
class Counts:
    """What became of a file's rows.

    Attributes:
        rows: read.
        failed: written with an error.
        cut: answered, but not read to the end.
        left_out: columns that the target could not take, because the rows looked at first lack them.
        resumed: of the rows, those that an interrupted run had answered.
    """

    rows: int = 0
    failed: int = 0
    cut: int = 0
    left_out: tuple[str, ...] = ()
    resumed: int = 0


class Progress:
    """How far an interrupted run came: rows that are written whole, beside what they are answers of.

    Rows lie in the target's ``.partial``; this file says how many of its bytes are sure. A run with another bundle,
    engine, source or policy begins anew.

    Args:
        predictor: that answers.
        source: that is read.
        target: that is written.
        wanted: columns that are read.
    """

    def __init__(self, predictor: Predictor, source: Path, target: Path, wanted: Sequence[str]) -> None:
        self._target = target
        self._file = target.with_name(f".{target.name}.progress")
        stat = source.stat()
        self._key = {
            "bundle": predictor.bundle.digest,
            "source": [str(source.resolve()), stat.st_size, stat.st_mtime_ns],
            "columns": list(wanted),
            "engine": type(predictor.engine).__name__,
            "truncation": predictor.reading.truncation.value,
            "versions": versions(),
        }

    def read(self) -> tuple[Counts, int]:
        """Return what an interrupted run of the same work has, and the bytes of its rows; nothing if there is none."""
        try:
            found = json.loads(self._file.read_text("utf8"))
            if found["key"] == self._key and draft_of(self._target).stat().st_size >= found["bytes"]:
                counts = Counts(**{**found["counts"], "left_out": tuple(found["counts"]["left_out"])})
                return replace(counts, resumed=counts.rows), int(found["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return Counts(), 0

    def write(self, counts: Counts, written: int) -> None:
        """Keep how far it came."""
        write_text(self._file, json.dumps({"key": self._key, "counts": asdict(counts), "bytes": written}))

    def done(self) -> None:
        """Forget it: the target is whole."""
        self._file.unlink(missing_ok=True)


def predict_file(
    predictor: Predictor,
    source: Path,
    target: Path | None,
    *,
    column: str | None = None,
    pair: str | None = None,
    chunk: int = 256,
) -> Counts:
    """Answer every row of a file; each is written with its own columns and the answer's, failed ones with ``error``.

    Standard output gets the answers alone.

    An interrupted run goes on behind the rows that it had written, except into Parquet. Memory does not grow with rows.

    A line that cannot be read, or a row without the column, fails alone. A column of the answer that the file has
    already is written as ``predicted_<name>`` in every row. Should one turn up after the rows that were looked at
    first, the file's own value is the one renamed, to ``source_<name>``: an answer always stands in one place.

    Args:
        predictor: that answers.
        source: CSV, TSV, JSONL or Parquet file; or a .txt file, which is one text.
        target: file to write, format by suffix; JSON lines on standard output if None.
        column: of the text; None takes "text", or "question" where answers are asked for.
        pair: of the second text, where the bundle reads pairs; None takes "pair", or "context".
        chunk: rows held at a time.

    Raises:
        DataError: if none of the first thousand readable rows has the column, or `target` is the source.
        OptionError: if `chunk` is not positive.
        StorageError: if the target cannot be written.
    """
    if chunk < 1:
        raise OptionError(f"chunk must be positive, got {chunk}; 256 is the default")
    if target is not None and target.resolve() == source.resolve():
        raise DataError(f"{target} is the file that is read; give another one to write")
    wanted = _wanted(predictor.card, column, pair)
    rows, columns = _peek(_scan(source, wanted[0]), source, wanted)
    names = {name: _free(name, columns) for name in ANSWERS}
    progress = None
    counts, written = Counts(), 0
    if target is not None and target.suffix.lower() != ".parquet":
        progress = Progress(predictor, source, target, wanted)
        counts, written = progress.read()
    for _ in range(counts.rows):
        next(rows, None)
    with ExitStack() as stack:
        writer = stack.enter_context(RowWriter(target, written)) if target is not None else None
        while part := list(islice(rows, chunk)):
            for row, answer in zip(part, _answers(predictor, part, wanted, source), strict=True):
                counts.rows += 1
                counts.failed += answer["error"] is not None
                counts.cut += answer.get("tokens_cut", 0) > 0 and answer["error"] is None
                if writer is None:
                    sys.stdout.write(json.dumps(answer) + "\n")
                    continue
                kept = {} if isinstance(row, DataError) else _beside(row, names.values())
                if target is not None and target.suffix.lower() not in (".jsonl", ".ndjson"):
                    kept = {**dict.fromkeys(columns), **kept}
                    answer = {name: answer.get(name) for name in ANSWERS}
                writer.write(kept | {names[name]: value for name, value in answer.items()})
            if writer is not None:
                counts.left_out = tuple(sorted({*counts.left_out, *writer.left_out}))
                if progress is not None:
                    progress.write(counts, writer.flush())
    if progress is not None:
        progress.done()
    return counts


def _wanted(card: Card, column: str | None, pair: str | None) -> tuple[str, ...]:
    """Return the columns that a bundle reads: one, or two of pairs."""
    usual = ("question", "context") if card.task == "answer" else ("text", "pair")
    return (column or usual[0], pair or usual[1]) if card.inputs == "pair" else (column or "text",)


def _answers(predictor: Predictor, part: list[Row | DataError], wanted: tuple[str, ...], source: Path) -> list[Row]:
    """Answer the rows that have the columns; the others get an error in the same place."""
    texts: list[Any] = []
    for row in part:
        found = None if isinstance(row, DataError) or not row.keys() >= set(wanted) else [row[name] for name in wanted]
        texts.append(found[0] if found and len(found) == 1 else found)
    answers = [prediction.to_row() for prediction in predictor.predict(texts)]
    for place, row in enumerate(part):
        if isinstance(row, DataError):
            answers[place]["error"] = str(row)
        elif missing := [name for name in wanted if name not in row]:
            answers[place]["error"] = str(_no_column(source, missing[0], row))
    return answers


def _free(name: str, taken: Collection[str], prefix: str = "predicted") -> str:
    """Return a name for a column that others leave free."""
    while name in taken:
        name = f"{prefix}_{name}"
    return name


def _beside(row: Row, answers: Collection[str]) -> Row:
    """Return a row whose own columns leave the answer's names free."""
    return {_free(name, answers, "source"): value for name, value in row.items()}


def _peek(
    rows: Iterator[Row | DataError], source: Path, wanted: tuple[str, ...]
) -> tuple[Iterator[Row | DataError], list[str]]:
    """Look for the columns before anything is written: a wrong name must not cost an old target.

    Returns:
        All rows, and the columns of the first thousand readable ones.

    Raises:
        DataError: if rows can be read, and none of the first thousand has one of the columns.
    """
    seen: list[Row | DataError] = []
    readable: list[Row] = []
    while len(readable) < _PEEKED and (row := next(rows, None)) is not None:
        seen.append(row)
        if not isinstance(row, DataError):
            readable.append(row)
    columns = list(dict.fromkeys(name for row in readable for name in row))
    missing = [name for name in wanted if name not in columns]
    if readable and missing:
        raise _no_column(source, missing[0], readable[0])
    return chain(seen, rows), columns


def _no_column(source: Path, column: str, row: Row) -> DataError:
    return DataError(f"{source}: no column {column!r} in a row; it has: {', '.join(map(str, row))}")


def _scan(source: Path, column: str) -> Iterator[Row | DataError]:
    if source.suffix.lower() != ".txt":
        return scan_rows(source)
    if not source.is_file():
        raise DataError(f"{source} is not a file")
    return iter([{column: source.read_text("utf8", errors="surrogateescape")}])
