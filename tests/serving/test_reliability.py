"""Faults, load and change while it runs; the long forms are soaks."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.serving.conftest import Live, Start

import louver
from louver.bundle import Bundle
from louver.decode import FoundSpan, Prediction
from louver.errors import BundleError, OptionError
from louver.serving.house import House, agree

LONG = "moss " * 2000


def pids(live: Live, name: str = "embed") -> list[int]:
    served = live.house.get(name)
    return [worker.pid for worker in (*served.workers, *served.long_workers) if worker.pid is not None]


def until(true: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def many(url: str, bodies: list[dict[str, object]], path: str = "/embed") -> list[int]:
    """Send requests at once; return their statuses."""

    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
            found = await asyncio.gather(*(client.post(path, json=body) for body in bodies))
        for one in found:
            assert one.status_code != 429 or int(one.headers["retry-after"]) >= 1
        return [one.status_code for one in found]

    return asyncio.run(ask())


def test_a_full_house_says_so_at_once_and_answers_all_others(start: Start, embedder: Bundle) -> None:
    server = start({"embed": embedder.path}, {"queue": 32})
    found = Counter(many(server.url, [{"inputs": f"the sea {n} " * 30} for n in range(200)]))
    assert set(found) <= {200, 429}
    assert found[200] >= 32
    assert found[429] > 0
    assert server.house.get().in_house == 0


def test_a_worker_that_dies_is_replaced_and_its_request_is_told(start: Start, embedder: Bundle) -> None:
    server = start({"embed": embedder.path}, {"long_workers": 0})
    (before,) = pids(server)
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(server.post("/embed", {"inputs": [LONG] * 8}).status_code))
    asking.start()
    until(lambda: server.house.get().in_house == 8)
    time.sleep(0.2)
    os.kill(before, signal.SIGKILL)
    asking.join(60)
    assert statuses == [503]
    until(lambda: server.post("/embed", {"inputs": "the sea"}).status_code == 200)
    assert pids(server) != [before]
    assert re.search(r'^louver_worker_restarts\{model="embed"\} 1\.0$', server.get("/metrics").text, re.MULTILINE)


def test_a_worker_that_hangs_is_replaced(start: Start, embedder: Bundle) -> None:
    server = start({"embed": embedder.path}, {"long_workers": 0, "timeout_s": 3})
    os.kill(pids(server)[0], signal.SIGSTOP)
    refused = server.post("/embed", {"inputs": "the sea"})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    until(lambda: server.post("/embed", {"inputs": "the sea"}).status_code == 200)


def test_who_goes_away_leaves_nothing_behind(start: Start, embedder: Bundle) -> None:
    server = start({"embed": embedder.path}, {"queue": 10_000})
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"inputs": ["' + b"moss " * 1500 + b'"]}'
    head = (
        f"POST /embed HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    for _ in range(200):
        with socket.create_connection((host, int(port))) as one:
            one.sendall(head.encode() + body)
    served = server.house.get()
    until(lambda: served.in_house == 0 and served.waiting == 0)
    assert server.post("/embed", {"inputs": "the sea"}).status_code == 200
    assert 'status="499"' in server.get("/metrics").text


def test_a_bundle_is_loaded_anew_without_a_lost_request(
    start: Start, embedder: Bundle, exported: Bundle, tmp_path: Path
) -> None:
    server = start({"embed": embedder.path}, keys=["key"])
    headers = {"x-api-key": "key"}
    statuses: Counter[int] = Counter()
    going = True

    def load() -> None:
        with httpx.Client(timeout=60, headers=headers) as client:
            while going:
                statuses[client.post(server.url + "/embed", json={"inputs": "the sea " * 20}).status_code] += 1

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = pids(server)
    found = server.post("/admin/reload", {"path": str(embedder.path)}, headers=headers)
    assert found.json() == {"model": "embed", "digest": embedder.digest}
    assert not set(before) & set(pids(server))
    broken = server.post("/admin/reload", {"path": str(tmp_path)}, headers=headers)
    assert broken.status_code == 422
    assert "is no bundle" in broken.json()["error"]
    going = False
    for thread in threads:
        thread.join(60)
    assert set(statuses) == {200}


def test_a_shadow_answers_nobody_and_is_counted(start: Start, embedder: Bundle, exported: Bundle) -> None:
    server = start({"embed": embedder.path}, shadows={"embed": exported.path})
    assert server.get("/info").json()["model_id"] == "embed"
    alone = start({"embed": embedder.path}, shadows={"embed": embedder.path})
    for one in (server, alone):
        assert one.post("/embed", {"inputs": ["the sea", "a rose"]}).status_code == 200

    def counted(live: Live, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", live.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def has(live: Live) -> bool:
        return counted(live, 'louver_shadow_texts_total{model="embed",outcome="answered"}') == 2

    for one, agreement in ((server, 0.0), (alone, 2.0)):
        until(partial(has, one))
        assert counted(one, 'louver_shadow_agreement_total{model="embed"}') == pytest.approx(agreement, abs=1e-5)


def test_a_server_that_stops_answers_what_it_has(embedder: Bundle) -> None:
    from tests.serving.conftest import start_server

    stops: list[object] = []
    server = start_server(House({"embed": embedder.path}), stops)  # type: ignore[arg-type]
    workers = pids(server)
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(server.post("/embed", {"inputs": [LONG] * 4}).status_code))
    asking.start()
    until(lambda: server.house.get().in_house == 4)
    stops[0]()  # type: ignore[operator]
    asking.join(60)
    assert statuses == [200]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_what_cannot_be_served_is_told(embedder: Bundle, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a server needs at least one bundle, got none"):
        House({})
    with pytest.raises(OptionError, match="shadow 'b' stands beside no bundle; unknown bundle 'b'"):
        House({"a": embedder.path}, shadows={"b": embedder.path})
    with pytest.raises(BundleError, match="does not exist"):
        asyncio.run(House({"a": tmp_path / "none"}).open())


def test_how_far_answers_agree() -> None:
    one, other = np.asarray([1.0, 0.0], np.float32), np.asarray([0.6, 0.8], np.float32)
    span = FoundSpan(0, 3, "x", "abc", 0.5)
    cases = [
        (Prediction(label="a"), Prediction(label="a"), 1.0),
        (Prediction(label="a"), Prediction(label="b"), 0.0),
        (Prediction(labels=("a",)), Prediction(labels=("a", "b")), 0.0),
        (Prediction(value=100.0), Prediction(value=100.5), 1.0),
        (Prediction(value=100.0), Prediction(value=102.0), 0.0),
        (Prediction(embedding=one), Prediction(embedding=other), 0.6),
        (Prediction(embedding=one), Prediction(embedding=np.ones(3, np.float32)), 0.0),
        (Prediction(spans=(span,)), Prediction(spans=(span._replace(score=0.9),)), 1.0),
        (Prediction(spans=(span,)), Prediction(spans=()), 0.0),
        (Prediction(answer=span, answer_score=1.0), Prediction(answer=None, answer_score=-1.0), 0.0),
        (Prediction(error="x"), Prediction(error="y"), 1.0),
        (Prediction(error="x"), Prediction(label="a"), 0.0),
    ]
    for a, b, wanted in cases:
        assert agree(a, b) == pytest.approx(wanted)


def test_a_reader_of_the_same_bundle_gives_the_same(start: Start, embedder: Bundle) -> None:
    """Whatever else is in the batch, and through whichever lane: short and long."""
    server = start({"embed": embedder.path}, {"long_from": 600})
    texts = [f"the sea {n} " * (1 + 13 * (n % 40)) for n in range(60)]

    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            found = await asyncio.gather(*(client.post("/embed", json={"inputs": text}) for text in texts))
        return [one.json()[0] for one in found]

    with louver.Predictor(embedder) as predictor:
        wanted = predictor.logits(texts)
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(asyncio.run(ask()), wanted, atol=1e-5)
