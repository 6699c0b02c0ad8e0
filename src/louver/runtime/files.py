"""Whole files through a predictor, a chunk of rows at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from louver.errors import DataError
from louver.runtime.predictor import Predictor
from louver.text import Row, RowWriter, read_rows


@dataclass
class Counts:
    """What became of a file's rows."""

    rows: int = 0
    failed: int = 0
    cut: int = 0


def predict_file(
    predictor: Predictor, source: Path, target: Path | None, *, column: str = "text", chunk: int = 256
) -> Counts:
    """Answer every row of a file; each is written with its own columns and the answer's, failed ones with ``error``.

    A column of the answer that the file has already is written as ``predicted_<name>``, so that nothing is lost.

    Args:
        predictor: that answers.
        source: CSV, TSV, JSONL or Parquet file; or a .txt file, which is one text.
        target: file to write, format by suffix; JSON lines on standard output if None.
        column: of the text.
        chunk: rows held at a time.

    Raises:
        DataError: if the column is missing, or `target` is the source.
    """
    if target is not None and target.resolve() == source.resolve():
        raise DataError(f"{target} is the file that is read; give another one to write")
    counts = Counts()
    rows = _rows(source, column)
    first = list(islice(rows, 1))  # a wrong column must not cost an old target
    rows = chain(first, rows)
    taken = set(first[0]) if first else set()
    with ExitStack() as stack:
        writer = stack.enter_context(RowWriter(target)) if target is not None else None
        while part := list(islice(rows, chunk)):
            texts = [row.get(column) for row in part]
            for row, prediction in zip(part, predictor.predict(texts), strict=True):  # type: ignore[arg-type]
                answer = prediction.to_row()
                counts.rows += 1
                counts.failed += prediction.error is not None
                counts.cut += prediction.tokens_cut > 0 and prediction.error is None
                if writer is not None:
                    found = _all_columns(answer, target)
                    writer.write({**row, **{f"predicted_{k}" if k in taken else k: v for k, v in found.items()}})
                else:
                    sys.stdout.write(json.dumps(answer) + "\n")
    return counts


def _rows(source: Path, column: str) -> Iterator[Row]:
    if source.suffix.lower() == ".txt":
        if not source.is_file():
            raise DataError(f"{source} is not a file")
        return iter([{column: source.read_text("utf8", errors="surrogateescape")}])
    return _with_column(read_rows(source), source, column)


def _with_column(rows: Iterator[Row], source: Path, column: str) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if column not in row:
            raise DataError(f"{source}, row {number}: no column {column!r}; it has: {', '.join(map(str, row))}")
        yield row


def _all_columns(answer: Row, target: Path | None) -> Row:
    """CSV and Parquet want the same columns in every row, an answer's or a failure's."""
    if target is not None and target.suffix.lower() in (".jsonl", ".ndjson"):
        return answer
    names = ("label", "labels", "value", "embedding", "scores", "tokens_read", "tokens_cut", "error")
    return {name: answer.get(name) for name in names}
