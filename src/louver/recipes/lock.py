"""One runner a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from louver.errors import RecipeError
from louver.storage import storing


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock; the operating system frees it when the process ends, however it ends.

    Raises:
        RecipeError: if another process holds it.
        StorageError: if the directory cannot be written.
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
            raise RecipeError(f"{directory} is in use by another run; wait for it, or give --into") from error
        yield
    finally:
        os.close(descriptor)
