"""Texts that belong together: what embeddings are learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from louver.errors import DataError, TextError
from louver.text import check, read_rows


@dataclass(frozen=True)
class Similar:
    """One text, or texts that are alike.

    Attributes:
        texts: an anchor, a text that belongs to it, and texts that do not though they look so; or the anchor alone.
        score: how alike the first two are, where somebody said it.
    """

    texts: tuple[str, ...]
    score: float | None = None


def read_similar(
    path: str | Path,
    *,
    text: str = "text",
    pair: str | None = None,
    negative: str | None = None,
    score: str | None = None,
) -> list[Similar]:
    """Read rows of texts that belong together; rows that cannot be read are refused with their number.

    Args:
        path: CSV, TSV, JSONL or Parquet file.
        text: column of the anchor.
        pair: column of the text that belongs to it; None if every anchor stands alone.
        negative: column of a text that does not, or of a list of them; None if there is none.
        score: column of a number; higher is more alike.

    Raises:
        DataError: if a column is missing, a text cannot be read, or a score is no number.
    """
    if (negative or score) and not pair:
        raise DataError("a negative or a score stands beside a pair of texts; name the column of the second text too")
    found = []
    for number, row in enumerate(read_rows(path), 1):
        for column in (text, pair, negative, score):
            if column and column not in row:
                raise DataError(f"{path}, row {number}: no column {column!r}; it has: {', '.join(map(str, row))}")
        negatives = row[negative] if negative else []
        if not isinstance(negatives, list):
            negatives = [negatives]
        texts = [row[text], *([row[pair]] if pair else []), *negatives]
        try:
            value = float(row[score]) if score else None
            if value is not None and not math.isfinite(value):
                raise ValueError
            found.append(Similar(tuple(check(one) for one in texts), value))
        except TextError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}, row {number}: score {row[score or '']!r} is no number; mend the row") from error
    check_similar(found)
    return found


def check_similar(rows: Sequence[Similar]) -> None:
    """Refuse rows that do not belong together in one training.

    Raises:
        DataError: if there are none, or their number of texts differs, or some have a score and others none.
    """
    if not rows:
        raise DataError("there are no rows of texts; give at least two")
    if len({len(row.texts) for row in rows}) > 1 or len({row.score is None for row in rows}) > 1:
        raise DataError("rows differ in their number of texts, or some lack a score; give all of them the same")
    if rows[0].score is not None and len(rows[0].texts) != 2:
        raise DataError("a score belongs to two texts; leave negatives out")
