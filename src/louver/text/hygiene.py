"""Texts that cannot be read as they are."""

from __future__ import annotations

from louver.errors import TextError

CLEANINGS = ("none", "light")
_LIGHT = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # full-width Ａ１！ as A1!
    0x3000: 0x20,
    **{code: 0x20 for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r\x85"},
}


def clean(text: str, how: str) -> str:
    """Return a text as a model is to read it; every character keeps its place, so that offsets stay true.

    Args:
        text: any.
        how: "none"; or "light": full-width forms become plain ones (many vocabularies have the plain ones alone), and
            control characters spaces.
    """
    return text.translate(_LIGHT) if how == "light" else text


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
