"""The shapes of OpenAI's API: /v1/embeddings, /v1/models."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from louver.errors import OptionError
from louver.serving.api.replies import Texts, asks_for, listed, reply, whole
from louver.serving.api.tei import vectors
from louver.serving.house import House


class EmbeddingsRequest(BaseModel):
    """Texts to embed."""

    input: Texts
    model: str
    """Name of a bundle."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    """Keep the first so many numbers, and make their length 1 again."""
    user: str | None = None
    """Taken, and not used."""


def router(house: House) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.post("/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> Response:
        """Embed texts."""
        served = house.get(request.model)
        asks_for(served, "embed", remedy="name one that embeds")
        texts, _ = listed(request.input)
        if any(isinstance(one, int) or (isinstance(one, list) and one and isinstance(one[0], int)) for one in texts):
            raise OptionError("input holds token ids, which are of another tokenizer than this model's; send texts")
        found = await house.answer(request.model, texts)
        rows: list[Any] = vectors(whole(found), request.dimensions)
        if request.encoding_format == "base64":
            rows = [base64.b64encode(np.asarray(row, "<f4").tobytes()).decode() for row in rows]
        read = sum(one.tokens_read for one in found.predictions)
        content = {
            "object": "list",
            "model": served.name,
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
            "usage": {"prompt_tokens": read, "total_tokens": read},
        }
        return reply(content, found)

    @routes.get("/models")
    async def models() -> Response:
        """List the bundles."""
        listing = [{"id": name, "object": "model", "created": 0, "owned_by": "louver"} for name in house.served]
        return reply({"object": "list", "data": listing})

    return routes
