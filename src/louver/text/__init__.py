"""Texts to ids, and files to rows. Needs tokenizers and numpy alone (Parquet: pyarrow)."""

from louver.text.hygiene import check, check_pair
from louver.text.inputs import Text, inputs, rectangle
from louver.text.rows import Row, RowWriter, read_rows, read_texts, scan_rows
from louver.text.tokenizer import Tokenizer
from louver.text.truncation import Fitted, Ids, Truncation, cutting, fit

__all__ = [
    "Fitted",
    "Ids",
    "Row",
    "RowWriter",
    "Text",
    "Tokenizer",
    "Truncation",
    "check",
    "check_pair",
    "cutting",
    "fit",
    "inputs",
    "read_rows",
    "read_texts",
    "rectangle",
    "scan_rows",
]
