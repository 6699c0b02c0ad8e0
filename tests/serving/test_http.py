from __future__ import annotations

import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
from tests.serving.conftest import Live, Start

import louver
from louver.bundle import Bundle
from louver.text import Tokenizer

TEXTS = ["the sea is blue today", "a red rose", "moss " * 300]


@pytest.fixture(scope="module")
def expected(embedder: Bundle) -> np.ndarray:
    with louver.Predictor(embedder) as predictor:
        return np.stack([one.embedding for one in predictor.predict(TEXTS) if one.embedding is not None])


def test_embeddings_are_the_predictors(live: Live, expected: np.ndarray) -> None:
    found = live.post("/embed", {"inputs": TEXTS})
    assert found.status_code == 200
    np.testing.assert_allclose(np.asarray(found.json()), expected, atol=1e-6)
    one = live.post("/embed", {"inputs": TEXTS[0]}).json()
    np.testing.assert_allclose(one, expected[:1], atol=1e-6)
    by_name = live.post("/models/embed/embed", {"inputs": TEXTS[0]}).json()
    assert by_name == one
    short = np.asarray(live.post("/embed", {"inputs": TEXTS, "dimensions": 8}).json())
    wanted = expected[:, :8] / np.linalg.norm(expected[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, wanted, atol=1e-6)


def test_headers_say_what_was_read_and_where_time_went(live: Live, exported: Bundle) -> None:
    found = live.post("/embed", {"inputs": TEXTS})
    counts = [len(ids) for ids in Tokenizer.open(exported.path).encode(TEXTS)]
    assert int(found.headers["x-tokens-read"]) == sum(counts)
    assert int(found.headers["x-tokens-cut"]) == 0
    for part in ("tokenization", "queue", "inference"):
        assert float(found.headers[f"x-{part}-time"]) >= 0
    assert float(found.headers["x-inference-time"]) > 0


def test_labels_are_the_predictors(live: Live, exported: Bundle) -> None:
    found = live.post("/models/colours/predict", {"inputs": ["sea", "rose"]}).json()
    with louver.Predictor(exported) as predictor:
        wanted = predictor.predict(["sea", "rose"])
    for row, one in zip(found, wanted, strict=True):
        assert row[0]["label"] == one.label
        assert {item["label"]: item["score"] for item in row} == pytest.approx(one.scores, abs=1e-5)
        assert [item["score"] for item in row] == sorted((item["score"] for item in row), reverse=True)
    assert live.post("/models/colours/predict", {"inputs": "sea"}).json()[0]["label"] == wanted[0].label
    assert live.post("/models/colours/predict", {"inputs": [["sea"], ["rose"]]}).json() == found


def test_one_text_that_cannot_be_read_fails_alone(live: Live) -> None:
    many: list[Any] = [f"the sea {n}" for n in range(31)]
    many.insert(7, "\ud800")
    body = json.dumps({"inputs": many, "model": "colours"})
    found = httpx.post(live.url + "/answer", content=body, headers={"content-type": "application/json"}, timeout=60)
    answers = found.json()["answers"]
    assert len(answers) == 32
    assert [i for i, one in enumerate(answers) if one["error"] is not None] == [7]
    assert "lone surrogate U+D800" in answers[7]["error"]
    assert all(one["tokens_read"] == 3 for i, one in enumerate(answers) if i != 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the text is empty"),
        (" \t", "the text is empty"),
        ("\u200b", "invisible characters alone"),
        (3, "a text must be a string, got int"),
        (None, "a text must be a string, got NoneType"),
        (["a", "b", "c"], "a text must be a string, got list"),
    ],
)
def test_what_is_no_text_is_told(live: Live, text: Any, says: str) -> None:
    (answer,) = live.post("/answer", {"inputs": [text]}).json()["answers"]
    assert says in answer["error"]
    refused = live.post("/embed", {"inputs": [text]})
    assert refused.status_code == 422
    assert says in refused.json()["error"]


@pytest.mark.parametrize("text", ["a\x00b", "🙂🙂 海", "[SEP] [MASK] [CLS]", "x" * 90_000, "<s>", "é" * 500])
def test_strange_texts_are_read_as_they_are(live: Live, text: str, embedder: Bundle) -> None:
    """Special tokens that a user types are plain text."""
    found = live.post("/embed", {"inputs": text, "truncate": True})
    assert found.status_code == 200
    with louver.Predictor(embedder, truncation="head") as predictor:
        (wanted,) = predictor.logits([text])
    np.testing.assert_allclose(found.json()[0], wanted / np.linalg.norm(wanted), atol=1e-6)


def test_a_text_that_is_too_long(live: Live) -> None:
    text = "moss " * 3000
    refused = live.post("/embed", {"inputs": text})
    assert refused.status_code == 422
    assert "this model reads 2048 tokens and the text has 3002" in refused.json()["error"]
    cut = live.post("/embed", {"inputs": text, "truncate": True})
    assert (cut.headers["x-tokens-read"], cut.headers["x-tokens-cut"]) == ("2046", "954")
    for policy in ("head", "tail", "middle", "head_tail", "window"):
        (answer,) = live.post("/answer", {"inputs": [text], "truncate": policy}).json()["answers"]
        assert answer["tokens_read"] == (3000 if policy == "window" else 2046)
    wrong = live.post("/answer", {"inputs": [text], "truncate": "hed"})
    assert wrong.status_code == 422
    assert "unknown truncation 'hed'; did you mean 'head'?" in wrong.json()["error"]


@pytest.mark.parametrize(
    ("path", "content", "status", "says"),
    [
        ("/embed", {}, 422, "inputs: Field required"),
        ("/embed", [], 422, "the body: Input should be a valid dictionary"),
        ("/embed", {"inputs": []}, 422, "at least one text, got none"),
        ("/embed", {"inputs": ["a"] * 65}, 413, "at most 64 texts, got 65"),
        ("/embed", {"inputs": "a" * 100_001}, 413, "text 1 has 100001 characters"),
        ("/embed", {"inputs": "a", "dimensions": 9999}, 422, "got dimensions=9999; give at most that"),
        ("/embed", {"inputs": "a", "dimensions": 0}, 422, "dimensions: Input should be greater than or equal to 1"),
        ("/embed", {"inputs": "a", "normalize": False}, 422, "leave normalize out"),
        ("/predict", {"inputs": "a"}, 422, "'embed' has the task 'embed'; use /embed or /answer"),
        ("/models/colours/embed", {"inputs": "a"}, 422, "has the task 'classify'"),
        ("/models/color/embed", {"inputs": "a"}, 404, "unknown model 'color'; did you mean 'colours'?"),
        ("/models/colours/rerank", {"query": "a", "texts": ["b"]}, 422, "puts nothing in order"),
        ("/rerank", {"query": "a", "texts": []}, 422, "texts: List should have at least 1 item"),
        ("/answer", {"inputs": "a", "modle": "x"}, 422, "modle: Extra inputs are not permitted"),
        ("/answer", {"inputs": "a", "model": "x"}, 404, "unknown model 'x'"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/tokenize", {"inputs": ["a"] * 65}, 413, "at most 64 texts, got 65"),
        ("/tokenize", {"inputs": "a" * 100_001}, 413, "text 1 has 100001 characters"),
        ("/tokenize", {"inputs": ["a", ""]}, 422, "the text is empty"),
        ("/models/colours", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 422, "a bundle that embeds"),
        ("/", {"inputs": {"question": "a"}}, 422, "inputs has the keys question"),
        ("/v2/models/embed/infer", {"inputs": []}, 422, "a list of tensors as inputs"),
    ],
)
def test_bad_requests_are_told_in_one_line(live: Live, path: str, content: Any, status: int, says: str) -> None:
    found = live.post(path, content)
    assert found.status_code == status
    error = found.json()["error"]
    assert says in error
    assert "\n" not in error
    assert "Traceback" not in found.text


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b"null", b'{"inputs": ' + b"[" * 5000])
def test_broken_json_is_told(live: Live, body: bytes) -> None:
    found = httpx.post(live.url + "/embed", content=body, headers={"content-type": "application/json"})
    assert found.status_code in (400, 422)
    assert found.json()["error"]
    wrong = httpx.post(live.url + "/embed", content=b'{"inputs": "a"}', headers={"content-type": "text/plain"})
    assert wrong.status_code in (415, 422)


def test_a_body_that_is_too_large(live: Live) -> None:
    found = live.post("/embed", {"inputs": "a" * (1 << 20)})
    assert found.status_code == 413
    assert "at most 1048576 bytes" in found.json()["error"]

    def dribble() -> Any:
        for _ in range(80):
            yield b"a" * 20_000

    try:  # without a length, it is refused while it comes in
        status = httpx.post(live.url + "/embed", content=dribble(), timeout=30).status_code
    except httpx.TransportError:
        status = 413  # the connection was closed under the client's writing
    assert status == 413


def test_order_is_by_closeness(live: Live, expected: np.ndarray) -> None:
    found = live.post("/rerank", {"query": TEXTS[0], "texts": TEXTS[1:], "return_text": True}).json()
    wanted = expected[1:] @ expected[0]
    assert [row["index"] for row in found] == np.argsort(-wanted).tolist()
    assert [row["text"] for row in found] == [TEXTS[1:][row["index"]] for row in found]
    assert {row["index"]: row["score"] for row in found} == pytest.approx(dict(enumerate(wanted)), abs=1e-5)
    close = live.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}).json()
    assert close == pytest.approx(wanted.tolist(), abs=1e-5)


def test_tokens_stand_where_they_say(live: Live) -> None:
    text = "Don't stop,  海!"
    (row,) = live.post("/tokenize", {"inputs": text}).json()
    assert [one["special"] for one in row] == [True, *[False] * (len(row) - 2), True]
    for one in row[1:-1]:
        assert text[one["start"] : one["stop"]].lower() == one["text"].removeprefix("##")
    (bare,) = live.post("/tokenize", {"inputs": text, "add_special_tokens": False}).json()
    assert bare == row[1:-1]


def test_what_is_served_is_told(live: Live, embedder: Bundle) -> None:
    about = live.get("/info").json()
    assert about["model_id"] == "embed"
    assert about["max_input_length"] == 2048
    assert about["model_sha"] == embedder.digest
    assert live.get("/models/colours/info").json()["model_type"]["classifier"]["id2label"] == {
        "0": "blue",
        "1": "green",
        "2": "red",
    }
    assert [one["id"] for one in live.get("/v1/models").json()["data"]] == ["embed", "colours"]
    assert live.get("/health/live").json() == {"live": True}
    assert live.get("/health/ready").json()["ready"] is True
    paths = live.get("/openapi.json").json()["paths"]
    assert {"/embed", "/predict", "/rerank", "/v1/embeddings", "/v2/models/{name}/infer", "/answer"} <= paths.keys()


def test_metrics_count_and_hold_no_text(live: Live) -> None:
    def value(text: str, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = live.get("/metrics").text
    live.post("/embed", {"inputs": ["quorbix words", "moss " * 3000], "truncate": True})
    after = live.get("/metrics").text
    for name, grown in [
        ('louver_texts_total{model="embed",outcome="answered"}', 2),
        ('louver_truncated_texts_total{model="embed"}', 1),
        ('louver_tokens_total{kind="cut",model="embed"}', 954),
        ('louver_requests_total{path="/embed",status="200"}', 1),
    ]:
        assert value(after, name) - value(before, name) == grown
    assert value(after, 'louver_worker_resident_bytes{model="embed"}') > 10 << 20
    assert "quorbix" not in after


def test_a_request_keeps_its_id(live: Live) -> None:
    own = live.post("/embed", {"inputs": "a"}, headers={"x-request-id": "mine-7"})
    assert own.headers["x-request-id"] == "mine-7"
    wrong = live.post("/embed", {"inputs": "a"}, headers={"x-request-id": "a b\tc"})
    assert re.fullmatch(r"[0-9a-f]{32}", wrong.headers["x-request-id"])


def test_keys(start: Start, exported: Bundle) -> None:
    server = start({"colours": exported.path}, keys=["first", "second"], open_metrics=False)
    assert server.post("/predict", {"inputs": "sea"}).status_code == 401
    refused = server.post("/predict", {"inputs": "sea"}, headers={"authorization": "Bearer firs"})
    assert refused.status_code == 401
    assert "wants an API key" in refused.json()["error"]
    for headers in ({"authorization": "Bearer first"}, {"x-api-key": "second"}):
        assert server.post("/predict", {"inputs": "sea"}, headers=headers).status_code == 200
    assert server.get("/metrics").status_code == 401
    assert server.get("/health/live").status_code == 200
    again = server.post("/admin/reload", {}, headers={"x-api-key": "first"})
    assert again.json() == {"model": "colours", "digest": exported.digest}
