"""One integer hash for numpy and torch: the same bits forever, and on every backend."""

from __future__ import annotations

from typing import Any

_WORD = 0xFFFFFFFF


def hashed(seed: int, first: Any, second: Any) -> Any:
    """Mix a seed and two arrays of whole numbers into 32 bits (the finalizer of MurmurHash3, twice).

    Args:
        seed: any whole number.
        first: int64 array, numpy or torch; broadcast against `second`.
        second: int64 array.

    Returns:
        int64 values in 0…2³² - 1.
    """
    folded, rest = abs(seed) & 0x7FFFFFFF, (abs(seed) >> 31) * 2 + (seed < 0)
    while rest:  # what a word does not hold
        folded = _mix(_mix(folded + 1) + (rest & 0x7FFFFFFF)) & 0x7FFFFFFF
        rest >>= 31
    return _mix(_mix(first + folded * 0x9E3779B1) ^ (second * 0x85EBCA6B))


def _mix(value: Any) -> Any:
    # constants below 2³¹ times words below 2³² stay within int64: nothing wraps, whatever the library
    value = value & _WORD
    value = ((value ^ (value >> 16)) * 0x45D9F3B) & _WORD
    value = ((value ^ (value >> 15)) * 0x2C1B3C6D) & _WORD
    return value ^ (value >> 16)
