"""The process that computes: one engine, one call at a time, over a pipe.

A frame is a header of int32 and raw numbers; nothing is pickled. Whatever an engine does (a wrong id, a crash of its
library, too much memory) stays in this process.
"""

from __future__ import annotations

import os
import signal
import struct
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.runtime.engine import Engine, open_engine
from louver.text import rectangle

READY, DONE, FAILED = 0, 1, 2
_CALL = struct.Struct("<4i")
"""Branch, rows, width, and whether nothing else runs."""


def pack_call(branch: int, rows: list[np.ndarray], width: int, *, single: bool) -> bytes:
    """Return the frame that asks for one call.

    Args:
        branch: of the engine.
        rows: ids of each text.
        width: tokens that they are padded to.
        single: nothing else runs now.
    """
    lengths = np.asarray([len(row) for row in rows], np.int32)
    ids = np.concatenate(rows).astype(np.int32)
    return _CALL.pack(branch, len(rows), width, single) + lengths.tobytes() + ids.tobytes()


def unpack_call(frame: bytes) -> tuple[int, list[np.ndarray], int, bool]:
    """Return what `pack_call` was given."""
    branch, rows, width, single = _CALL.unpack_from(frame)
    numbers = np.frombuffer(frame, np.int32, offset=_CALL.size)
    ends = np.cumsum(numbers[:rows])[:-1]
    return branch, np.split(numbers[rows:].astype(np.int64), ends), width, bool(single)


def pack_answer(found: np.ndarray) -> bytes:
    """Return the frame that answers a call: (batch, outputs), or (batch, tokens, outputs)."""
    header = struct.pack(f"<{2 + found.ndim}i", DONE, found.ndim, *found.shape)
    return header + np.ascontiguousarray(found, np.float32).tobytes()


def unpack_answer(frame: bytes) -> np.ndarray | str:
    """Return a call's output, or what went wrong with it."""
    status, number = struct.unpack_from("<2i", frame)
    if status != DONE:
        return frame[8:].decode("utf8", "replace")
    shape = struct.unpack_from(f"<{number}i", frame, 8)
    return np.frombuffer(frame, np.float32, offset=8 + 4 * number).reshape(shape)


def work(pipe: Connection, bundle: str, threads: int, niceness: int, engine_name: str | None = None) -> None:
    """Answer calls until the pipe closes; the whole life of a worker process.

    Args:
        pipe: to the process that serves.
        bundle: directory of an opened, verified bundle.
        threads: cores that a lone call may use.
        niceness: how far this process steps back behind others (Unix).
        engine_name: what runs the ids; by the bundle's files if None.
    """
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)  # the server drains first, and then closes the pipe
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)
    opened = Bundle.open(Path(bundle), verify=False)
    engine = open_engine(opened, threads, engine_name)
    pad_id = _pad_id(opened)
    _warm(engine, pad_id)
    pipe.send_bytes(struct.pack("<2i", READY, 0))
    while True:
        try:
            frame = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            branch, rows, width, single = unpack_call(frame)
            ids, mask = rectangle(rows, pad_id, width)
            answer = pack_answer(engine.run(branch, ids, mask, single=single))
        except Exception as error:  # whatever an engine raises is an answer; the server decides what becomes of it
            line = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            answer = struct.pack("<2i", FAILED, 0) + line.encode()
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _pad_id(bundle: Bundle) -> int:
    from louver.text import Tokenizer

    return Tokenizer.open(bundle.path).pad_id


def _warm(engine: Engine, pad_id: int) -> None:
    """Run every graph once, so that the first request does not pay for sessions and kernels."""
    for branch, one in enumerate(engine.branches):
        ids = np.full((1, 8 if one.multiple == 1 else one.multiple), pad_id, np.int64)
        for single in (False, True):
            engine.run(branch, ids, np.ones_like(ids), single=single)
