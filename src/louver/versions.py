"""Versions of the packages that results depend on."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("louver", "torch", "transformers", "onnxruntime")


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Return a hash of louver's own source, which a version names only once it is released."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the installed versions of louver and of what computes for it."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
