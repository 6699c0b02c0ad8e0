"""Writing files so that whoever looks sees the old one or the whole new one, and a full disk is one clear line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from louver.errors import StorageError

_PLACE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.EEXIST,
}
"""Errors of where, not of how much."""


@contextmanager
def storing(target: str | Path, left: str = "nothing was left behind") -> Iterator[None]:
    """Turn what the system, or a library of the field, says of a disk into one line.

    Args:
        target: what is written, for the message.
        left: what becomes of a part.

    Raises:
        StorageError: in the place of the first error of storage.
    """
    from safetensors import SafetensorError  # what safetensors makes of a full disk

    try:
        yield
    except SafetensorError as error:
        raise StorageError(f"could not write {target}: {error}; {left}, free space") from error
    except OSError as error:
        if isinstance(error, StorageError) or error.errno is None:
            raise
        why = error.strerror or str(error)
        if error.errno in _PLACE:
            raise StorageError(
                f"could not write {target}: {why}; make its directory, or choose another place"
            ) from error
        raise StorageError(f"could not write {target}: {why}; {left}, free space or choose another disk") from error


def write_text(file: str | Path, text: str) -> None:
    """Write a file in one move, its directories too.

    Raises:
        StorageError: if the disk is full or refuses.
    """
    path = Path(file)
    draft = path.with_name(f".{path.name}.partial")
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, "utf8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock; the operating system frees it when the process ends, however it ends.

    Raises:
        StorageError: if another process holds it, or the directory cannot be written.
    """
    with storing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            else:
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{directory} is in use by another run; wait for it, or give another --into") from error
        yield
    finally:
        os.close(descriptor)
