"""Rows of CSV, TSV, JSONL and Parquet files, read and written one at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from louver.errors import DataError, need_extra, unknown

Row = dict[str, Any]
FORMATS = (".csv", ".jsonl", ".ndjson", ".parquet", ".tsv")
_PARQUET_ROWS = 1024


def read_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a file; the format is the suffix.

    Raises:
        DataError: if the file is missing, of an unknown format, or has a broken line (with its number).
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} is not a file; give a {', '.join(FORMATS)} file")
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":
            yield from _read_json_lines(file)
        case ".csv" | ".tsv":
            yield from _read_csv(file)
        case ".parquet":
            need_extra("data", "pyarrow")
            import pyarrow.parquet

            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(_PARQUET_ROWS):
                yield from batch.to_pylist()
        case suffix:
            raise DataError(unknown("file format", suffix, FORMATS))


def _read_json_lines(file: Path) -> Iterator[Row]:
    # Lone surrogates must reach the row that has them, not end the file: they may stand in JSON escapes.
    with file.open(encoding="utf8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: no JSON ({error.msg}); each line must be one object"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{file}, line {number}: {type(row).__name__}, not an object; write {{…}} on each line")
            yield row


def _read_csv(file: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    # utf-8-sig: spreadsheets put a byte order mark before the first column's name
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
        try:
            for row in reader:
                if None in row:
                    raise DataError(f"{file}, line {reader.line_num}: more cells than columns; quote cells with commas")
                yield row
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 ({error.reason}); save it as UTF-8") from error


class RowWriter:
    """Writes rows to a file, format by suffix; use as a context manager.

    Args:
        path: file to write.

    Raises:
        DataError: if the suffix is unknown.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in FORMATS:
            raise DataError(unknown("file format", self.path.suffix, FORMATS))
        self._stack = ExitStack()
        self._sink: Any = None
        self._stream: Any = None
        self._pending: list[Row] = []

    def __enter__(self) -> Self:
        if self.path.suffix.lower() == ".parquet":
            need_extra("data", "pyarrow")
        else:
            self._stream = self._stack.enter_context(self.path.open("w", encoding="utf8", newline=""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush_parquet()
        if self.path.suffix.lower() == ".parquet" and self._sink is not None:
            self._sink.close()
        self._stack.close()

    def write(self, row: Row) -> None:
        """Write one row; nested values become JSON in CSV. Rows of CSV and Parquet files have the first one's keys."""
        match self.path.suffix.lower():
            case ".jsonl" | ".ndjson":
                # ensure_ascii keeps a lone surrogate of a failed row writable
                safe = _is_unicode(row)
                self._stream.write(json.dumps(row, ensure_ascii=not safe) + "\n")
            case ".parquet":
                self._pending.append(_plain(row))
                if len(self._pending) >= _PARQUET_ROWS:
                    self._flush_parquet()
            case suffix:
                if self._sink is None:
                    self._sink = csv.DictWriter(self._stream, list(row), delimiter="\t" if suffix == ".tsv" else ",")
                    self._sink.writeheader()
                self._sink.writerow(_plain(row))

    def _flush_parquet(self) -> None:
        if not self._pending:
            return
        import pyarrow
        import pyarrow.parquet

        if self._sink is None:
            first: dict[str, Any] = {}
            for row in self._pending:
                first |= {key: value for key, value in row.items() if first.get(key) is None}
            schema = pyarrow.schema(
                [
                    (key, pyarrow.string() if value is None else pyarrow.scalar(value).type)
                    for key, value in first.items()
                ]
            )
            self._sink = pyarrow.parquet.ParquetWriter(self.path, schema)
        self._sink.write_table(pyarrow.Table.from_pylist(self._pending, schema=self._sink.schema))
        self._pending = []


def _plain(row: Row) -> Row:
    """Make nested values JSON strings, and lone surrogates replacement characters, for formats that know neither."""
    plain: Row = {}
    for key, value in row.items():
        flat = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        plain[key] = flat.encode("utf8", "replace").decode("utf8") if isinstance(flat, str) else flat
    return plain


def _is_unicode(row: Row) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode("utf8")
    except UnicodeEncodeError:
        return False
    return True
