"""Scripts that put no spaces between words."""

from __future__ import annotations


def is_ideograph(character: str) -> bool:
    """Say whether a character is of a script that is written without spaces: Chinese or Japanese."""
    code = ord(character)
    return 0x2E80 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF


def is_hangul(character: str) -> bool:
    """Say whether a character is a Korean syllable: words have spaces between them, endings have none before them."""
    return 0xAC00 <= ord(character) <= 0xD7AF


def stands_close(character: str) -> bool:
    """Say whether a character has no space beside others of its kind: ideographs, and signs of their width (，！)."""
    return is_ideograph(character) or 0xFF00 <= ord(character) <= 0xFFEF
