"""Patterns as pictures: for the terminal, and as a PNG file (written here: 20 lines against a plotting library)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from louver.patterns.base import Pattern
from louver.storage import storing

_HALF_BLOCKS = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_SEEN, _UNSEEN = (31, 78, 121), (238, 241, 245)


def terminal(pattern: Pattern, length: int = 64, width: int = 64) -> str:
    """Draw a pattern with half-block characters: rows are queries, columns are keys.

    Args:
        pattern: any pattern; of a schedule, layer 0 at this length is drawn.
        length: tokens of the drawn text.
        width: columns of the picture at most; a longer text is drawn in cells that are filled if any pair is allowed.
    """
    cells = _cells(pattern, length, min(width, length))
    if len(cells) % 2:
        cells = np.vstack([cells, np.zeros((1, cells.shape[1]), bool)])
    pairs = zip(cells[0::2], cells[1::2], strict=True)
    return "\n".join("".join(_HALF_BLOCKS[bool(a), bool(b)] for a, b in zip(*rows, strict=True)) for rows in pairs)


def png(pattern: Pattern, path: str | Path, length: int = 64, size: int = 512) -> Path:
    """Write a pattern as a square PNG.

    Args:
        pattern: any pattern; of a schedule, layer 0 at this length is drawn.
        path: file to write.
        length: tokens of the drawn text.
        size: pixels a side.

    Raises:
        StorageError: if the file cannot be written.
    """
    cells = _cells(pattern, length, min(size, length))
    index = np.arange(size) * len(cells) // size
    pixels = np.where(cells[index][:, index, None], np.asarray(_SEEN, np.uint8), np.asarray(_UNSEEN, np.uint8))
    scanlines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(scanlines, 9)), (b"IEND", b"")]
    target = Path(path)
    with storing(target):
        target.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks))
    return target


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _cells(pattern: Pattern, length: int, count: int) -> np.ndarray:
    """Shrink the mask to count x count cells; a cell is filled if any of its pairs is allowed."""
    mask = pattern.mask(length)
    starts = np.arange(count) * length // count
    rows = np.logical_or.reduceat(mask, starts, axis=0)
    return np.asarray(np.logical_or.reduceat(rows, starts, axis=1))
