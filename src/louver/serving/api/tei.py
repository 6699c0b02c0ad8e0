"""The shapes of text-embeddings-inference: /embed, /predict, /rerank, /similarity, /tokenize, /info."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from louver.bundle import Card
from louver.decode import Prediction
from louver.errors import ModelError, OptionError
from louver.serving.api.replies import OneText, Texts, asks_for, listed, reply, whole
from louver.serving.house import House
from louver.serving.served import Served
from louver.text import check
from louver.versions import versions


class _Truncates(BaseModel):
    truncate: bool | None = None
    """true cuts a text that is too long; otherwise the server's policy holds."""
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"

    @property
    def policy(self) -> str | None:
        """The truncation that was asked for."""
        if not self.truncate:
            return None
        return "tail" if self.truncation_direction.lower() == "left" else "head"


class EmbedRequest(_Truncates):
    """Texts to embed."""

    inputs: Texts
    normalize: bool = True
    """Embeddings have length 1; false is refused."""
    prompt_name: str | None = None
    dimensions: int | None = Field(None, ge=1)
    """Keep the first so many numbers, and make their length 1 again."""


class PredictRequest(_Truncates):
    """Texts or pairs to classify."""

    inputs: Texts
    raw_scores: bool = False


class RerankRequest(_Truncates):
    """Texts to put in order."""

    query: OneText
    texts: list[OneText] = Field(min_length=1)
    raw_scores: bool = False
    return_text: bool = False


class Sentences(BaseModel):
    """A sentence, and others."""

    source_sentence: OneText
    sentences: list[OneText] = Field(min_length=1)


class SimilarityRequest(_Truncates):
    """Sentences to compare."""

    inputs: Sentences


class TokenizeRequest(BaseModel):
    """Texts to cut into tokens."""

    inputs: Texts
    add_special_tokens: bool = True


def router(house: House) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["text-embeddings-inference"])

    @routes.post("/embed")
    async def embed(request: EmbedRequest, model: str | None = None) -> Response:
        """Embed texts."""
        served = house.get(model)
        asks_for(served, "embed", remedy="use /predict or /answer")
        if not request.normalize:
            raise OptionError("embeddings have length 1, and their raw length is not kept; leave normalize out")
        if request.prompt_name:
            raise OptionError(f"the bundle has one prompt, in its card; leave prompt_name {request.prompt_name!r} out")
        texts, _ = listed(request.inputs)
        found = await house.answer(model, texts, request.policy)
        return reply(vectors(whole(found), request.dimensions), found)

    @routes.post("/predict")
    async def predict(request: PredictRequest, model: str | None = None) -> Response:
        """Classify texts, or pairs of them."""
        served = house.get(model)
        asks_for(served, "classify", remedy="use /embed or /answer")
        texts, alone = _inputs(request.inputs, paired=served.card.inputs == "pair")
        found = await house.answer(model, texts, request.policy)
        rows = [scored(one) for one in whole(found)]
        return reply(rows[0] if alone else rows, found)

    @routes.post("/rerank")
    async def rerank(request: RerankRequest, model: str | None = None) -> Response:
        """Put texts in the order in which they belong to a query."""
        served = house.get(model)
        query, texts = request.query, request.texts
        if served.card.task == "embed":
            found = await house.answer(model, [query, *texts], request.policy)
            scores = to_the_first(whole(found))
        elif ranks(served.card):
            found = await house.answer(model, [(query, text) for text in texts], request.policy)
            scores = [_rank(one, served.card) for one in whole(found)]
        else:
            raise ModelError(
                f"{served.name!r} puts nothing in order; serve one that embeds, or one that reads pairs and gives a "
                "number or two labels"
            )
        order = sorted(range(len(texts)), key=lambda i: -scores[i])
        shown = [{"index": i, "score": scores[i]} | ({"text": texts[i]} if request.return_text else {}) for i in order]
        return reply(shown, found)

    @routes.post("/similarity")
    async def similarity(request: SimilarityRequest, model: str | None = None) -> Response:
        """Return the cosine of a sentence with each of the others."""
        asks_for(house.get(model), "embed", remedy="serve a bundle that embeds")
        inputs = request.inputs
        found = await house.answer(model, [inputs.source_sentence, *inputs.sentences], request.policy)
        return reply(to_the_first(whole(found)), found)

    @routes.post("/tokenize")
    async def tokenize(request: TokenizeRequest, model: str | None = None) -> Response:
        """Cut texts into tokens, as the model gets them."""
        served = house.get(model)
        texts, _ = listed(request.inputs)
        served.admit(texts)
        found = await served.beside(lambda: tokens(served, texts, specials=request.add_special_tokens))
        return reply(found)

    @routes.get("/info")
    async def info(model: str | None = None) -> Response:
        """Say what is served."""
        return reply(describe(house.get(model)))

    return routes


def vectors(predictions: list[Prediction], dimensions: int | None = None) -> list[list[float]]:
    """Return embeddings, cut to their first numbers if asked for.

    Raises:
        OptionError: if there are fewer numbers.
    """
    found = np.stack([one.embedding for one in predictions if one.embedding is not None])
    if dimensions is not None:
        if dimensions > found.shape[1]:
            raise OptionError(
                f"embeddings have {found.shape[1]} numbers, got dimensions={dimensions}; give at most that"
            )
        found = found[:, :dimensions]
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    rows: list[list[float]] = np.round(found.astype(np.float64), 9).tolist()  # all that float32 holds, in less JSON
    return rows


def to_the_first(predictions: list[Prediction]) -> list[float]:
    """Return the cosine of the first embedding with each of the others."""
    first, *rest = np.asarray(vectors(predictions))
    return [float(first @ one) for one in rest]


def scored(one: Prediction) -> list[dict[str, Any]]:
    """Return labels with their probabilities, the likeliest first; a number as the one label ``value``."""
    if one.value is not None:
        return [{"label": "value", "score": one.value}]
    scores = one.scores or {}
    return [{"label": name, "score": scores[name]} for name in sorted(scores, key=lambda name: -scores[name])]


def ranks(card: Card) -> bool:
    """Say whether a bundle of pairs gives one number by which texts can be put in order."""
    return card.task == "classify" and card.inputs == "pair" and (card.kind == "regression" or len(card.labels) == 2)


def _rank(one: Prediction, card: Card) -> float:
    """Return the number, or the probability of the second label."""
    return one.value if one.value is not None else (one.scores or {})[card.labels[1]]


def _inputs(inputs: object, *, paired: bool) -> tuple[list[object], bool]:
    """Return texts, and whether it was one alone; two strings are one pair where the bundle reads pairs."""
    if isinstance(inputs, list) and paired and len(inputs) == 2 and all(isinstance(one, str) for one in inputs):
        return [tuple(inputs)], True
    texts, alone = listed(inputs)
    return [one[0] if isinstance(one, list) and len(one) == 1 else one for one in texts], alone


def tokens(served: Served, texts: list[object], *, specials: bool) -> list[list[dict[str, Any]]]:
    """Return the tokens of texts with their places in them.

    Raises:
        TextError: if one cannot be read.
    """
    tokenizer = served.reading.tokenizer
    named = tokenizer.core.id_to_token

    def row(ids: Iterable[int], places: Iterable[Any] | None) -> list[dict[str, Any]]:
        spots = [(None, None)] * len(list(ids)) if places is None else [tuple(map(int, one)) for one in places]
        return [
            {"id": int(i), "text": named(int(i)), "special": places is None, "start": start, "stop": stop}
            for i, (start, stop) in zip(ids, spots, strict=True)
        ]

    found = []
    for _, ids, places in tokenizer.encode_after("", [check(text) for text in texts], offsets=True):
        before, after = (row(ids, None) if specials else [] for ids in (tokenizer.prefix, tokenizer.suffix))
        found.append([*before, *row(ids.tolist(), places), *after])
    return found


def describe(served: Served) -> dict[str, Any]:
    """Return what a bundle is and what a request may ask of it."""
    card, limits = served.card, served.limits
    kind: dict[str, Any] = (
        {"embedding": {"pooling": card.pooling}}
        if card.task == "embed"
        else {
            "classifier" if card.task == "classify" else card.task: {
                "id2label": {str(i): name for i, name in enumerate(card.labels)},
                "label2id": {name: i for i, name in enumerate(card.labels)},
            }
        }
    )
    return {
        "model_id": served.name,
        "model_sha": served.bundle.digest,
        "model_dtype": card.precision,
        "model_type": kind,
        "inputs": card.inputs,
        "pattern": card.pattern,
        "max_input_length": card.max_length,
        "max_batch_tokens": limits.batch_tokens,
        "max_client_batch_size": limits.request_texts,
        "max_concurrent_requests": limits.queue,
        "auto_truncate": served.reading.truncation != "error",
        "truncation": served.reading.truncation.value,
        "version": versions().get("louver", ""),
    }
