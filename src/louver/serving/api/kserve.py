"""The shapes of the open inference protocol (KServe v2), with Triton's binary extension."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pydantic_core
from fastapi import APIRouter, Request, Response

from louver.bundle import Card
from louver.decode import Prediction
from louver.errors import OptionError
from louver.serving.api.replies import reply, told_of, whole
from louver.serving.house import House
from louver.serving.served import Answers, Served
from louver.versions import versions

LENGTH = "inference-header-content-length"
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "inputs": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["name", "shape", "datatype"],
                            "properties": {
                                "name": {"type": "string", "enum": ["text", "pair"]},
                                "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                                "datatype": {"type": "string", "enum": ["BYTES"]},
                                "data": {"type": "array", "items": {"type": "string"}},
                            },
                        },
                    },
                },
            }
        }
    },
}


def router(house: House) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v2", tags=["KServe"])

    @routes.get("")
    async def server() -> Response:
        """Say what this server is."""
        return reply({"name": "louver", "version": versions().get("louver", ""), "extensions": ["binary_tensor_data"]})

    @routes.get("/health/live")
    async def live() -> Response:
        """Say that the process lives."""
        return reply({"live": True})

    @routes.get("/health/ready")
    async def ready() -> Response:
        """Say whether every bundle answers."""
        found = await house.ready()
        return reply({"ready": found}, status=200 if found else 503)

    @routes.get("/models/{name}")
    async def model(name: str) -> Response:
        """Say what a bundle takes and gives."""
        return reply(metadata(house.get(name)))

    @routes.get("/models/{name}/ready")
    async def model_ready(name: str) -> Response:
        """Say whether a bundle answers."""
        found = not house.draining and bool(house.get(name).workers)
        return reply({"ready": found}, status=200 if found else 503)

    @routes.post("/models/{name}/infer", openapi_extra={"requestBody": _BODY})
    async def infer(name: str, request: Request) -> Response:
        """Answer a tensor of texts."""
        served = house.get(name)
        asked, tensors = read(await request.body(), request.headers)
        texts = texts_of(tensors, served.card)
        found = await house.answer(name, texts)
        return written(asked, served, found)

    return routes


def metadata(served: Served) -> dict[str, Any]:
    """Return the names, types and shapes of a bundle's tensors."""
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    if served.card.inputs == "pair":
        inputs.append({"name": "pair", "datatype": "BYTES", "shape": [-1]})
    outputs = [{"name": "tokens_read", "datatype": "INT64", "shape": [-1]}]
    for name, (datatype, width) in _tensors(served.card).items():
        outputs.append({"name": name, "datatype": datatype, "shape": [-1] if width is None else [-1, width]})
    return {
        "name": served.name,
        "versions": ["1"],
        "platform": "louver_onnx" if served.card.onnx else "louver_torch",
        "inputs": inputs,
        "outputs": outputs,
    }


def _tensors(card: Card) -> dict[str, tuple[str, int | None]]:
    """Return (type, numbers a text) of each tensor of a task."""
    if card.task == "embed":
        return {"embedding": ("FP32", -1)}
    if card.task == "classify" and card.kind == "regression":
        return {"value": ("FP32", None)}
    if card.task == "classify":
        return {"label": ("BYTES", None), "scores": ("FP32", len(card.labels))}
    return {"answer": ("BYTES", None)}


def read(body: bytes, headers: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return a request's JSON, and its tensors by name.

    Raises:
        OptionError: if it is no such request.
    """
    given = headers.get(LENGTH)
    if given is not None and not (given.isdigit() and int(given) <= len(body)):
        raise OptionError(f"{LENGTH} is {given!r} of a body of {len(body)} bytes; give the bytes of its JSON")
    end = len(body) if given is None else int(given)
    try:
        asked = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise OptionError("the request is no JSON; send an object with inputs") from error
    inputs = asked.get("inputs") if isinstance(asked, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise OptionError("a request has a list of tensors as inputs; send name, shape, datatype and data of each")
    tensors: dict[str, list[Any]] = {}
    place = end
    for one in inputs:
        name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
        if name not in ("text", "pair") or datatype != "BYTES":
            raise OptionError(f"tensor {name!r} of type {datatype!r} is not taken; send text (and pair) of type BYTES")
        whole_shape = isinstance(shape, list) and all(isinstance(n, int) and n > 0 for n in shape)
        parameters = one.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            values = _flat(one.get("data"))
        else:
            if not isinstance(size, int) or size < 0 or place + size > len(body):
                raise OptionError(f"tensor {name!r} has {size!r} binary bytes, which the body does not hold")
            values = _unpacked(body[place : place + size])
            place += size
        if not whole_shape or int(np.prod(shape, dtype=object)) != len(values):
            raise OptionError(f"tensor {name!r} of shape {shape!r} holds {len(values)} texts; let them agree")
        tensors[name] = values
    return asked, tensors


def _flat(data: object) -> list[Any]:
    """Return data in row-major order, nested or not."""
    if not isinstance(data, list):
        raise OptionError("a tensor without binary data has a list as data")
    found: list[Any] = []
    for one in data:
        found.extend(_flat(one) if isinstance(one, list) else [one])
    return found


def _unpacked(raw: bytes) -> list[str]:
    """Read strings that each stand behind their length in four bytes."""
    found, place = [], 0
    while place < len(raw):
        if place + 4 > len(raw):
            raise OptionError("binary data of type BYTES ends within a length; send length and bytes of each text")
        (size,) = struct.unpack_from("<I", raw, place)
        place += 4
        if place + size > len(raw):
            raise OptionError("binary data of type BYTES ends within a text; send length and bytes of each text")
        found.append(raw[place : place + size].decode("utf8", "surrogateescape"))
        place += size
    return found


def texts_of(tensors: Mapping[str, list[Any]], card: Card) -> list[object]:
    """Return the texts, or pairs of them, of a request's tensors.

    Raises:
        OptionError: if a tensor is missing or too much, or they differ in length.
    """
    wanted = ("text", "pair") if card.inputs == "pair" else ("text",)
    if set(tensors) != set(wanted) or len({len(tensor) for tensor in tensors.values()}) > 1:
        raise OptionError(
            f"this bundle takes the tensors {' and '.join(wanted)} of one length, got "
            f"{', '.join(f'{name} of {len(tensor)}' for name, tensor in tensors.items())}"
        )
    if card.inputs == "pair":
        return list(zip(tensors["text"], tensors["pair"], strict=True))
    return list(tensors["text"])


def written(asked: Mapping[str, Any], served: Served, found: Answers) -> Response:
    """Return the answers as tensors, binary where that was asked for."""
    answers = whole(found)
    parameters = asked.get("parameters") if isinstance(asked.get("parameters"), dict) else {}
    wanted = asked.get("outputs")
    binary_all = bool(parameters and parameters.get("binary_data_output"))
    made = tensors_of(answers, served.card)
    chosen: dict[str, bool] = {}
    for one in wanted if isinstance(wanted, list) else [{"name": name} for name in made]:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(one, dict) or name not in made:
            raise OptionError(f"there is no output {name!r}; ask for {', '.join(made)}")
        own = one.get("parameters")
        chosen[name] = bool((own if isinstance(own, dict) else {}).get("binary_data", binary_all))
    outputs, tail = [], b""
    for name, binary in chosen.items():
        datatype, values = made[name]
        row: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        if binary:
            raw = _packed(values) if datatype == "BYTES" else values.tobytes()
            row["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            row["data"] = values.ravel().tolist()
        outputs.append(row)
    content: dict[str, Any] = {"model_name": served.name, "model_version": "1", "outputs": outputs}
    if isinstance(asked.get("id"), str):
        content["id"] = asked["id"]
    if not tail:
        return reply(content, found)
    head = pydantic_core.to_json(content)
    return Response(head + tail, 200, {**told_of(found), LENGTH: str(len(head))}, "application/octet-stream")


def tensors_of(answers: list[Prediction], card: Card) -> dict[str, tuple[str, np.ndarray]]:
    """Return (type, values) of each tensor."""
    read_tokens = np.asarray([one.tokens_read for one in answers], "<i8")
    found: dict[str, tuple[str, np.ndarray]] = {}
    if card.task == "embed":
        found["embedding"] = (
            "FP32",
            np.stack([one.embedding for one in answers if one.embedding is not None]).astype("<f4"),
        )
    elif card.task == "classify" and card.kind == "regression":
        found["value"] = ("FP32", np.asarray([one.value for one in answers], "<f4"))
    elif card.task == "classify":
        names = [one.label if one.label is not None else "|".join(one.labels or ()) for one in answers]
        found["label"] = ("BYTES", np.asarray(names, object))
        found["scores"] = ("FP32", np.asarray([[(one.scores or {})[n] for n in card.labels] for one in answers], "<f4"))
    else:
        rows = [pydantic_core.to_json(one.to_row()).decode() for one in answers]
        found["answer"] = ("BYTES", np.asarray(rows, object))
    return {**found, "tokens_read": ("INT64", read_tokens)}


def _packed(values: np.ndarray) -> bytes:
    """Put each string behind its length in four bytes."""
    raw = [str(one).encode() for one in values.ravel()]
    return b"".join(struct.pack("<I", len(one)) + one for one in raw)
