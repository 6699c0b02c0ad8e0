"""What results depend on: versions of packages, and the processor."""

from __future__ import annotations

import hashlib
import platform
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


def processor() -> str:
    """Return the processor's name, as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
