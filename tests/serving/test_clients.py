"""Clients that people use, against a real server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http
from huggingface_hub import InferenceClient
from tests.serving.conftest import Live, Start

import louver
from louver.bundle import Bundle

TEXTS = ["the sea is blue today", "a red rose"]


@pytest.fixture(scope="module")
def expected(embedder: Bundle) -> np.ndarray:
    with louver.Predictor(embedder) as predictor:
        found = predictor.logits(TEXTS)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def test_openai(live: Live, expected: np.ndarray) -> None:
    """It asks for base64 by itself."""
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="embed", input=TEXTS)
        np.testing.assert_allclose([one.embedding for one in found.data], expected, atol=1e-6)
        assert (found.usage.prompt_tokens, found.model) == (8, "embed")
        plain = client.embeddings.create(model="embed", input=TEXTS[0], encoding_format="float", dimensions=4)
        assert len(plain.data[0].embedding) == 4
        assert [one.id for one in client.models.list()] == ["embed", "colours"]
        with pytest.raises(openai.NotFoundError, match="unknown model 'gpt'"):
            client.embeddings.create(model="gpt", input="a")
        with pytest.raises(openai.UnprocessableEntityError, match="token ids, which are of another tokenizer"):
            client.embeddings.create(model="embed", input=[[1, 2, 3]])


def test_tritonclient(live: Live, expected: np.ndarray, exported: Bundle) -> None:
    """Binary tensors both ways, and plain ones."""
    client = tritonclient.http.InferenceServerClient(live.url.removeprefix("http://"))
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("embed")
        about = client.get_model_metadata("colours")
        assert {one["name"]: one["datatype"] for one in about["outputs"]} == {
            "tokens_read": "INT64",
            "label": "BYTES",
            "scores": "FP32",
        }
        tensor = tritonclient.http.InferInput("text", [2], "BYTES")
        for binary in (True, False):
            tensor.set_data_from_numpy(np.asarray(TEXTS, object), binary_data=binary)
            found = client.infer("embed", [tensor])
            np.testing.assert_allclose(found.as_numpy("embedding"), expected, atol=1e-6)
            assert found.as_numpy("tokens_read").tolist() == [5, 3]
            wanted = tritonclient.http.InferRequestedOutput("label", binary_data=binary)
            labels = client.infer("colours", [tensor], outputs=[wanted]).as_numpy("label")
            with louver.Predictor(exported) as predictor:
                expected_labels = [one.label for one in predictor.predict(TEXTS)]
            assert [one.decode() if isinstance(one, bytes) else one for one in labels] == expected_labels
        with pytest.raises(tritonclient.http.InferenceServerException, match="unknown model 'no'"):
            client.infer("no", [tensor])
    finally:
        client.close()


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a"]}], "of shape \\[2\\] holds 1 texts"),
        ([{"name": "text", "shape": [1], "datatype": "FP32", "data": [float("nan")]}], "'FP32' is not taken"),
        ([{"name": "ids", "shape": [1], "datatype": "INT64", "data": [-1]}], "tensor 'ids' of type 'INT64'"),
        ([{"name": "text", "shape": [-1], "datatype": "BYTES", "data": ["a"]}], "of shape \\[-1\\]"),
        ([{"name": "text", "shape": [1], "datatype": "BYTES"}], "has a list as data"),
        ([{"name": "pair", "shape": [1], "datatype": "BYTES", "data": ["a"]}], "takes the tensors text of one length"),
        (
            [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 9}}],
            "9 binary bytes",
        ),
        ("text", "a list of tensors as inputs"),
    ],
)
def test_tensors_that_are_none(live: Live, inputs: Any, says: str) -> None:
    body = json.dumps({"inputs": inputs})
    found = httpx.post(live.url + "/v2/models/embed/infer", content=body, timeout=30)
    assert found.status_code == 422
    assert re.search(says, found.json()["error"])


@pytest.fixture
def hub_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], InferenceClient]:
    """The tests' environment is offline, which the client takes to mean this machine too."""
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    return InferenceClient


def test_huggingface_hub(hub_client: Callable[[str], InferenceClient], live: Live, expected: np.ndarray) -> None:
    client = hub_client(live.url)
    np.testing.assert_allclose(client.feature_extraction(TEXTS), expected, atol=1e-6)
    close = client.sentence_similarity(TEXTS[0], TEXTS)
    assert close == pytest.approx((expected @ expected[0]).tolist(), abs=1e-5)
    labels = hub_client(live.url + "/models/colours").text_classification("the sea")
    assert {one.label for one in labels} == {"blue", "green", "red"}
    assert sum(one.score for one in labels) == pytest.approx(1, abs=1e-5)


def test_spans_and_answers_for_the_hub_client(
    hub_client: Callable[[str], InferenceClient], start: Start, tagging: Bundle, answering: Bundle
) -> None:
    """Bundles on torch, too: character offsets of the text that was sent."""
    server = start({"tags": tagging.path, "answers": answering.path})
    text = "moss  sea 海 rose"
    spans = hub_client(server.url + "/models/tags").token_classification(text)
    assert spans
    for span in spans:
        assert text[span.start : span.end] == span.word
        assert span.entity_group in ("blue", "red")
    context = "the sea is blue and the rose is red"
    found = hub_client(server.url + "/models/answers").question_answering(question="which?", context=context)
    one: Any = found
    assert context[one.start : one.end] == one.answer


def test_many_at_once_over_async_httpx(live: Live, expected: np.ndarray) -> None:
    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:
            found = await asyncio.gather(*(client.post("/embed", json={"inputs": TEXTS[n % 2]}) for n in range(100)))
        return [one.json()[0] for one in found]

    np.testing.assert_allclose(asyncio.run(ask()), np.tile(expected, (50, 1)), atol=1e-6)
