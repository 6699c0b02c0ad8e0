"""louver's own shape: every answer with what was read and cut, and an error for each text that failed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from louver.serving.api.replies import listed, reply
from louver.serving.house import House

Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "anyOf": [
                            {"type": "string"},
                            {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
                        ]
                    },
                },
            ],
            "examples": [["A text.", "Another one."]],
        }
    ),
]


class AnswerRequest(BaseModel):
    """Texts, or pairs of them, to answer."""

    model_config = ConfigDict(extra="forbid")
    inputs: Inputs
    """A text, or a list of texts (of pairs, where the bundle reads pairs)."""
    truncate: str | None = Field(None, examples=["head"])
    """error, head, tail, head_tail, middle or window; the bundle's own policy if left out."""
    model: str | None = None
    """Name of a bundle; the first one if left out."""


def router(house: House) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["louver"])

    @routes.post("/answer")
    async def answer(request: AnswerRequest) -> Response:
        """Answer texts; one that fails has its ``error`` in its place, and the others have their answers."""
        texts, _ = listed(request.inputs)
        found = await house.answer(request.model, texts, request.truncate)
        return reply(
            {
                "model": house.get(request.model).name,
                "answers": [one.to_row() for one in found.predictions],
                "timing_ms": {
                    "tokenization": round(1000 * found.timing.tokenization, 2),
                    "queue": round(1000 * found.timing.queue, 2),
                    "inference": round(1000 * found.timing.inference, 2),
                },
            },
            found,
        )

    return routes
