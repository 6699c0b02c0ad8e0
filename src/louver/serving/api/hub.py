"""The shapes of Hugging Face's inference client and of transformers' pipelines: POST / and /models/NAME."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, WithJsonSchema

from louver.decode import Prediction
from louver.errors import OptionError
from louver.serving.api.replies import asks_for, listed, reply, whole
from louver.serving.api.tei import scored, to_the_first, vectors
from louver.serving.house import House

Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}, {"type": "object"}],
            "examples": ["A text."],
        }
    ),
]


class PipelineRequest(BaseModel):
    """What a pipeline of this task takes."""

    inputs: Inputs
    """A text or several; {"question", "context"}; or {"source_sentence", "sentences"}."""
    parameters: dict[str, Any] = {}
    """top_k is used, and others are left alone."""


def router(house: House, path: str = "/") -> APIRouter:
    """Return the route, at a path."""
    routes = APIRouter(tags=["Hugging Face"])

    @routes.post(path)
    async def pipeline(request: PipelineRequest, model: str | None = None) -> Response:
        """Answer as a pipeline of the bundle's task does."""
        served = house.get(model)
        texts, alone, compares = _texts(request.inputs)
        if compares:
            asks_for(served, "embed", remedy="serve a bundle that embeds")
        found = await house.answer(model, texts)
        answers = whole(found)
        if served.card.task == "embed":
            return reply(to_the_first(answers) if compares else vectors(answers), found)
        top = request.parameters.get("top_k")
        shown = [_shown(one, served.card.task, top) for one in answers]
        # a list in a list for one text too, but a question's one answer stands alone
        bare = alone and served.card.task in ("tag", "answer")
        return reply(shown[0] if bare else shown, found)

    return routes


def _texts(inputs: object) -> tuple[list[object], bool, bool]:
    """Return texts, whether it was one alone, and whether the first one is to be compared with the others."""
    if not isinstance(inputs, dict):
        return (*listed(inputs), False)
    if {"question", "context"} <= inputs.keys():
        return [(inputs["question"], inputs["context"])], True, False
    if {"source_sentence", "sentences"} <= inputs.keys() and isinstance(inputs["sentences"], list):
        return [inputs["source_sentence"], *inputs["sentences"]], False, True
    if {"text", "text_pair"} <= inputs.keys():
        return [(inputs["text"], inputs["text_pair"])], True, False
    raise OptionError(
        f"inputs has the keys {', '.join(map(str, inputs)) or 'none'}; give question and context, source_sentence and "
        "sentences, or text and text_pair"
    )


def _shown(one: Prediction, task: str, top: object) -> Any:
    """Return one answer as a pipeline shows it."""
    if task == "tag":
        return [
            {"entity_group": span.label, "score": span.score, "word": span.text, "start": span.start, "end": span.end}
            for span in one.spans or ()
        ]
    if task == "answer":
        best = one.answer
        if best is None:
            return {"answer": "", "score": one.answer_score, "start": 0, "end": 0}
        return {"answer": best.text, "score": one.answer_score, "start": best.start, "end": best.end}
    rows = scored(one)
    return rows[:top] if isinstance(top, int) and top > 0 else rows
