"""Every error a user can see.

A message has the value, the rule and the remedy, in one line. Each class is also the builtin that fits, so that
``except ValueError`` works for people who do not import louver's names.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable


class LouverError(Exception):
    """Base of all errors that are the user's to mend; the CLI prints them as one line and exits with 2."""


class OptionError(LouverError, ValueError):
    """A value outside what an option allows."""


class PatternError(LouverError, ValueError):
    """A pattern that cannot be built, parsed, or used where it was used."""


class DataError(LouverError, ValueError):
    """Rows or labels that cannot be used as they are."""


class TextError(LouverError, ValueError):
    """One text that cannot be read; in a batch it becomes the ``error`` of that item."""


class ModelError(LouverError, ValueError):
    """A checkpoint or an architecture that louver cannot use."""


class BundleError(LouverError, ValueError):
    """A directory that is no bundle, or no longer the bundle that was written."""


class RecipeError(LouverError, ValueError):
    """A recipe that does not say something runnable."""


class TrainingError(LouverError, RuntimeError):
    """Training that cannot go on."""


class ServeError(LouverError, ConnectionError):
    """A server that does not answer."""


class MissingExtraError(LouverError, ImportError):
    """A package that an extra of louver would have installed."""


class StorageError(LouverError, OSError):
    """A file or directory that could not be read or written."""


def need_extra(extra: str, *modules: str) -> None:
    """Check at a folder's door that an extra's packages are installed.

    Args:
        extra: name of the extra in ``pyproject.toml``.
        modules: import names that the caller is about to import.

    Raises:
        MissingExtraError: naming the missing packages and the command that installs them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{', '.join(missing)} not installed; run: pip install 'louver[{extra}]'")


def unknown(kind: str, value: object, known: Iterable[str]) -> str:
    """Say that a word is unknown, name the nearest known one, and list them all."""
    words = sorted(known)
    near = difflib.get_close_matches(str(value), words, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {value!r}; {hint}expected one of: {', '.join(words)}"
