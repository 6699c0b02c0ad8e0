"""Texts that cannot be read as they are."""

from __future__ import annotations

from louver.errors import TextError


def check(text: object) -> str:
    """Return the text if it can be tokenized.

    Raises:
        TextError: if it is no string, holds nothing to be seen, or is not valid Unicode.
    """
    if not isinstance(text, str):
        raise TextError(f"a text must be a string, got {type(text).__name__}; convert or drop it")
    if not text.strip():
        raise TextError("the text is empty; drop the row or give it a text")
    for index, character in enumerate(text) if not text.isascii() else ():
        if "\ud800" <= character <= "\udfff":
            raise TextError(
                f"the text has a lone surrogate U+{ord(character):04X} at character {index}; "
                "decode the source as UTF-8, or replace it"
            )
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise TextError("the text holds invisible characters alone; drop the row or give it a text")
    return text


def check_pair(pair: object) -> tuple[str, str]:
    """Return a pair of texts if both can be tokenized.

    Raises:
        TextError: if it is no pair, or as `check`.
    """
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        found = f"{len(pair)} texts" if isinstance(pair, list | tuple) else type(pair).__name__
        raise TextError(f"this model reads pairs of texts, got {found}; give (first, second)")
    return check(pair[0]), check(pair[1])
