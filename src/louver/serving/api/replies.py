"""What every shape of request shares: texts as JSON has them, replies with their times, errors as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic_core
from fastapi import Response
from pydantic import WithJsonSchema

from louver.decode import Prediction
from louver.errors import LouverError, ModelError, TextError
from louver.serving.house import UnknownModelError
from louver.serving.served import Answers, OverloadedError, Served, TooLargeError, UnavailableError

OneText = Annotated[Any, WithJsonSchema({"type": "string", "examples": ["A text."]})]
"""A text. What is none, or cannot be read, is told by the tokenizer's own checks, and fails alone in a batch."""
Texts = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
            "examples": [["A text.", "Another one."]],
        }
    ),
]
"""One text or several."""


class FailedError(LouverError, RuntimeError):
    """The model failed on a text by itself."""


def listed(inputs: object) -> tuple[list[object], bool]:
    """Return a request's texts, and whether it was one alone."""
    return (list(inputs), False) if isinstance(inputs, list) else ([inputs], True)


def whole(found: Answers) -> list[Prediction]:
    """Return predictions where a shape has no place for the error of one text.

    Raises:
        TextError: if a text could not be read.
        FailedError: if the model failed on one.
    """
    for number, one in enumerate(found.predictions, 1):
        if one.error is not None:
            kind = TextError if found.read[number - 1].error is not None else FailedError
            raise kind(
                one.error if len(found.predictions) == 1 else f"text {number} of {len(found.predictions)}: {one.error}"
            )
    return found.predictions


def asks_for(served: Served, *tasks: str, remedy: str) -> None:
    """Refuse a request that this bundle has no answer for.

    Raises:
        ModelError: if its task is none of these.
    """
    if served.card.task not in tasks:
        raise ModelError(f"{served.name!r} has the task {served.card.task!r}; {remedy}")


def reply(content: Any, found: Answers | None = None, status: int = 200, **headers: str) -> Response:
    """Return JSON; of answers, with the headers of `told_of`."""
    told = headers if found is None else headers | told_of(found)
    return Response(pydantic_core.to_json(content), status, told, "application/json")


def told_of(found: Answers) -> dict[str, str]:
    """Return headers: what was read, and where the time went, in milliseconds."""
    timing = found.timing
    return {
        "x-tokens-read": str(sum(one.tokens_read for one in found.predictions)),
        "x-tokens-cut": str(sum(one.tokens_cut for one in found.predictions)),
        "x-tokenization-time": f"{1000 * timing.tokenization:.2f}",
        "x-queue-time": f"{1000 * timing.queue:.2f}",
        "x-inference-time": f"{1000 * timing.inference:.2f}",
    }


def status_of(error: LouverError) -> tuple[int, str, Mapping[str, str]]:
    """Return an error's status, its kind in a word, and headers."""
    if isinstance(error, OverloadedError):
        return 429, "overloaded", {"retry-after": str(max(1, round(error.retry_after_s)))}
    if isinstance(error, UnavailableError):
        return 503, "unavailable", {"retry-after": "1"}
    if isinstance(error, TooLargeError):
        return 413, "too_large", {}
    if isinstance(error, UnknownModelError):
        return 404, "unknown_model", {}
    if isinstance(error, FailedError):
        return 424, "inference", {}
    if isinstance(error, ModelError):
        return 422, "wrong_task", {}
    return 422, "validation", {}
