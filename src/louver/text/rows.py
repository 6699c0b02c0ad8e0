"""Rows of CSV, TSV, JSONL and Parquet files, read and written one at a time."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from louver.errors import DataError, need_extra, unknown
from louver.storage import storing

Row = dict[str, Any]
FORMATS = (".csv", ".jsonl", ".ndjson", ".parquet", ".tsv")
_PARQUET_ROWS = 1024


def read_texts(path: str | Path, column: str) -> Iterator[object]:
    """Yield one column of a file; rows that lack it give None.

    Raises:
        DataError: as `read_rows`, and if the first row has no such column.
    """
    for number, row in enumerate(read_rows(path)):
        if not number and column not in row:
            raise DataError(f"{path} has no column {column!r}; it has: {', '.join(row)}")
        yield row.get(column)


def read_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a file; the format is the suffix.

    Raises:
        DataError: if the file is missing, of an unknown format, or has a broken line (with its number).
    """
    for row in scan_rows(path):
        if isinstance(row, DataError):
            raise row
        yield row


def scan_rows(path: str | Path) -> Iterator[Row | DataError]:
    """Yield the rows of a file, and the error of a broken one in its place.

    Raises:
        DataError: if the file is missing, of an unknown format, or broken as a whole.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} is not a file; give a {', '.join(FORMATS)} file")
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":
            yield from _scan_json_lines(file)
        case ".csv" | ".tsv":
            yield from _scan_csv(file)
        case ".parquet":
            yield from _scan_parquet(file)
        case suffix:
            raise DataError(unknown("file format", suffix, FORMATS))


def _scan_json_lines(file: Path) -> Iterator[Row | DataError]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{file}, line {number}"
            try:
                written = line.decode("utf-8-sig" if number == 1 else "utf8")
                row = json.loads(written) if written.strip() else None
            except UnicodeDecodeError:
                yield DataError(f"{where}: no UTF-8; save the file as UTF-8")
            except json.JSONDecodeError as error:
                yield DataError(f"{where}: no JSON ({error.msg}); each line must be one object")
            else:
                if isinstance(row, dict):
                    yield row
                elif row is not None or written.strip():
                    yield DataError(f"{where}: {type(row).__name__}, not an object; write {{…}} on each line")


def _scan_csv(file: Path) -> Iterator[Row | DataError]:
    csv.field_size_limit(2**31 - 1)
    # utf-8-sig: spreadsheets put a byte order mark before the first column's name; bytes that are no UTF-8 come as
    # surrogates, so that they fail their own row
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
        for row in reader:
            where = f"{file}, line {reader.line_num}"
            if None in row:
                yield DataError(f"{where}: more cells than columns; quote cells with commas")
            elif not _is_unicode(row):
                yield DataError(f"{where}: no UTF-8; save the file as UTF-8")
            else:
                yield row


def _scan_parquet(file: Path) -> Iterator[Row]:
    need_extra("data", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(_PARQUET_ROWS):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} cannot be read as Parquet: {' '.join(str(error).split())}") from error


def draft_of(path: Path) -> Path:
    """Return where rows lie until a file is whole."""
    return path.with_name(f"{path.name}.partial")


class RowWriter:
    """Writes rows to a file, format by suffix; use as a context manager.

    Rows go to ``<name>.partial``, which takes the file's place at the end; after an error it stays, with the rows so
    far, and an older file of that name stays too.

    Args:
        path: file to write.
        after: bytes of an interrupted run's ``.partial`` to keep and go on behind; not of Parquet.

    Attributes:
        left_out: columns that a CSV or Parquet file could not take, because its first row lacks them.

    Raises:
        DataError: if the suffix is unknown.
    """

    def __init__(self, path: str | Path, after: int = 0) -> None:
        self.path = Path(path)
        self._after = after
        self._suffix = self.path.suffix.lower()
        if self._suffix not in FORMATS:
            raise DataError(unknown("file format", self.path.suffix, FORMATS))
        self.left_out: set[str] = set()
        self._draft = draft_of(self.path)
        self._stack = ExitStack()
        self._sink: Any = None
        self._stream: Any = None
        self._columns: list[str] = []
        self._pending: list[Row] = []

    def __enter__(self) -> Self:
        with self._storing():
            if self._suffix == ".parquet":
                need_extra("data", "pyarrow")
                self._draft.unlink(missing_ok=True)
                self._draft.touch()  # a place that cannot be written is told before the first row
            else:
                mode = "a" if self._after else "w"
                if self._after:
                    os.truncate(self._draft, self._after)
                self._stream = self._stack.enter_context(self._draft.open(mode, encoding="utf8", newline=""))
        return self

    def flush(self) -> int:
        """Hand the rows so far to the system, and return their bytes; not of Parquet, whose end makes it readable.

        Raises:
            StorageError: if the disk is full.
        """
        with self._storing():
            self._stream.flush()
            return os.fstat(self._stream.fileno()).st_size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._storing():
            self._flush_parquet()
            if self._suffix == ".parquet":
                self._close_parquet()
            self._stack.close()
            if error is None and self._draft.exists():
                self._draft.replace(self.path)

    def write(self, row: Row) -> None:
        """Write one row. In CSV and Parquet nested values become JSON, and all rows have the first one's keys.

        Raises:
            StorageError: if the disk is full.
            DataError: if a Parquet column changes its type.
        """
        with self._storing():
            if self._suffix in (".jsonl", ".ndjson"):
                # ensure_ascii keeps a lone surrogate of a failed row writable
                self._stream.write(json.dumps(row, ensure_ascii=not _is_unicode(row), default=str) + "\n")
                return
            self._columns = self._columns or list(row)
            self.left_out |= row.keys() - set(self._columns)
            plain = _plain({name: row.get(name) for name in self._columns})
            if self._suffix == ".parquet":
                self._pending.append(plain)
                if len(self._pending) >= _PARQUET_ROWS:
                    self._flush_parquet()
                return
            if self._sink is None:
                self._sink = csv.DictWriter(
                    self._stream, self._columns, delimiter="\t" if self._suffix == ".tsv" else ","
                )
                if not self._after:
                    self._sink.writeheader()
            self._sink.writerow(plain)

    def _storing(self) -> AbstractContextManager[None]:
        return storing(self.path, f"the rows so far are in {self._draft}")

    def _close_parquet(self) -> None:
        import pyarrow
        import pyarrow.parquet

        if self._sink is None:  # no rows
            pyarrow.parquet.write_table(pyarrow.table({}), self._draft)
        else:
            self._sink.close()

    def _flush_parquet(self) -> None:
        if not self._pending:
            return
        import pyarrow
        import pyarrow.parquet

        if self._sink is None:
            self._sink = pyarrow.parquet.ParquetWriter(self._draft, _schema(self._columns, self._pending))
        schema = self._sink.schema
        texts = {field.name for field in schema if pyarrow.types.is_string(field.type)}
        rows = [{k: _text(v) if k in texts else v for k, v in row.items()} for row in self._pending]
        self._pending = []
        try:
            self._sink.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            why = " ".join(str(error).split())
            raise DataError(
                f"{self.path}: a column changes its type ({why}); write JSONL, which may mix them"
            ) from error


def _schema(columns: Sequence[str], rows: Sequence[Row]) -> Any:
    """Return a Parquet schema of the types that the first rows have; text where they mix, or have none."""
    import pyarrow

    kinds = []
    for name in columns:
        found = {pyarrow.scalar(row[name]).type for row in rows if row[name] is not None}
        kinds.append((name, found.pop() if len(found) == 1 else pyarrow.string()))
    return pyarrow.schema(kinds)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)


def _plain(row: Row) -> Row:
    """Make nested values JSON strings, and lone surrogates replacement characters, for formats that know neither."""
    plain: Row = {}
    for key, value in row.items():
        flat = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value
        plain[key] = flat.encode("utf8", "replace").decode("utf8") if isinstance(flat, str) else flat
    return plain


def _is_unicode(row: Row) -> bool:
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode("utf8")
    except UnicodeEncodeError:
        return False
    return True
