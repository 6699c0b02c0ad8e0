"""Versions of the packages that results depend on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("louver", "torch", "transformers", "onnxruntime")


def versions() -> dict[str, str]:
    """Return the installed versions of louver and of what computes for it."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
