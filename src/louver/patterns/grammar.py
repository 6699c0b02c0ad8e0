"""Patterns as strings and as JSON.

The grammar is a small part of Python's expression grammar, read with `ast` and never evaluated:
``window(128) | global(1)``, ``causal & window(left=256, right=0)``, ``every(3, full, else_=window(64))``,
``by_length({512: full, inf: window(128) | global(1)})``, ``heads({2: full, inf: window(64)})``. ``&`` binds tighter
than ``|``.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from functools import lru_cache
from typing import Any

from louver.errors import LouverError, PatternError, unknown
from louver.patterns.base import REGISTRY, Intersection, Pattern, Union
from louver.patterns.schedule import Branches, by_length, heads

_BRANCHES = {"by_length": by_length, "heads": heads}
_KEYWORD = re.compile(r"\bglobal\b")  # Python reserves the word, so ast must not see it


def parse(text: str | Pattern) -> Pattern:
    """Read a pattern from its string.

    Args:
        text: for example ``"window(128) | global(1)"``; a pattern is returned as it is.

    Returns:
        The pattern; ``str`` of it gives the canonical string back.

    Raises:
        PatternError: if a word is unknown (the nearest known one is named) or an argument does not fit.
    """
    if isinstance(text, Pattern):
        return text
    if not isinstance(text, str):
        raise PatternError(f"a pattern is a string or a Pattern, got {text!r}; write for example 'window(128)'")
    return _read(text)


@lru_cache(maxsize=1024)
def _read(text: str) -> Pattern:
    try:
        tree = ast.parse(_KEYWORD.sub("global_", text.strip()), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise PatternError(f"cannot read pattern {text!r}; write for example 'window(128) | global(1)'") from error
    return _pattern(tree.body)


def _pattern(node: ast.expr) -> Pattern:
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _pattern(node.left) | _pattern(node.right)
        case ast.BinOp(op=ast.BitAnd()):
            return _pattern(node.left) & _pattern(node.right)
        case ast.Name():
            return _build(node.id, [], {})
        case ast.Call(func=ast.Name(id=word)):
            named = {k.arg: _value(k.value) for k in node.keywords if k.arg}
            return _build(word, [_value(a) for a in node.args], named)
    raise PatternError(f"cannot read {ast.unparse(node)!r} as a pattern; write for example 'window(128) | global(1)'")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str()) if not isinstance(node.value, bool):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return -number
        case ast.Name(id="inf"):
            return math.inf
        case ast.List() | ast.Tuple():
            return tuple(_value(e) for e in node.elts)
        case ast.Dict():
            return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    return _pattern(node)


def _build(word: str, positional: list[Any], named: dict[str, Any]) -> Pattern:
    word = word.rstrip("_")
    cls = REGISTRY.get(word)
    if cls is None:
        raise PatternError(unknown("pattern", word, REGISTRY))
    try:
        if word in _BRANCHES:
            return _BRANCHES[word](*positional, **named)
        return cls(*positional, **named)
    except LouverError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        known = ", ".join(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]
        given = ", ".join([*map(str, positional), *(f"{name}={value}" for name, value in named.items())])
        raise PatternError(f"{word} does not take ({given}); it takes: {known or 'nothing'}") from error


def to_json(pattern: Pattern) -> dict[str, Any]:
    """Return a pattern as JSON-ready values: its word under ``"type"``, its fields beside it."""
    if isinstance(pattern, Union | Intersection):
        return {"type": pattern.word, "members": [to_json(part) for part in pattern.members]}
    if isinstance(pattern, Branches):
        branches = [[None if math.isinf(limit) else int(limit), to_json(part)] for limit, part in pattern.branches]
        return {"type": pattern.word, "branches": branches}
    fields: dict[str, Any] = {"type": pattern.word}
    for field in dataclasses.fields(pattern):  # type: ignore[arg-type]
        value = getattr(pattern, field.name)
        if value != field.default:
            fields[field.name] = to_json(value) if isinstance(value, Pattern) else value
    return fields


def from_json(data: dict[str, Any]) -> Pattern:
    """Read a pattern from what `to_json` gave.

    Raises:
        PatternError: if a word is unknown or a field does not fit.
    """
    fields = dict(data)
    word = fields.pop("type", None)
    if word in (Union.word, Intersection.word):
        members = [from_json(part) for part in fields["members"]]
        result = members[0]
        for part in members[1:]:
            result = result | part if word == Union.word else result & part
        return result
    if word in _BRANCHES:
        return _BRANCHES[word](
            {math.inf if limit is None else limit: from_json(part) for limit, part in fields["branches"]}
        )
    values = {
        name: from_json(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return _build(str(word), [], values)
