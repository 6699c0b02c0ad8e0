"""Load on a server that is slow in known ways."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import write_jsonl
from tests.test_cli import call

from louver.errors import OptionError, ServeError
from louver.measure.load import Load, arrivals, put


@contextmanager
def server(stall: tuple[float, float] | None = None, refuse: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """Answer at once, but not between two times after the first request; refuse every so many."""
    asked: list[Any] = []
    began = [0.0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            began[0] = began[0] or time.monotonic()
            asked.append((self.path, body, self.headers["authorization"]))
            now = time.monotonic() - began[0]
            if stall and stall[0] <= now < stall[1]:
                time.sleep(stall[1] - now)
            self.send_response(429 if refuse and len(asked) % refuse == 0 else 200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 256

    with Quiet(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{running.server_port}", asked
        finally:
            running.shutdown()


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(50, 200, np.random.default_rng(0))
    gaps = np.diff(times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert gaps.mean() == pytest.approx(0.02, rel=0.05)
    assert gaps.std() == pytest.approx(0.02, rel=0.05)  # as wide as they are long: no clockwork
    assert times.max() < 200


def test_a_server_that_stands_still_is_seen_by_all_whose_time_it_was() -> None:
    """For half a second of two: a quarter of the requests wait, half of that on average."""
    with server(stall=(1.0, 1.5)) as (url, _):
        found = put(Load(url, seconds=2.0, warmup=0.2), ["a"], 60)
    assert found.answered == found.sent == pytest.approx(120, abs=40)
    assert found.p50_ms < 100
    assert found.p99_ms > 350  # one in four waited; of a closed loop with one client one request would have


def test_what_is_refused_is_counted_and_gives_no_latency() -> None:
    with server(refuse=4) as (url, _):
        found = put(Load(url, seconds=1.0, warmup=0.0), ["a"], 40)
    assert found.other.keys() == {429}
    assert found.answered + found.other[429] == found.sent
    assert found.other[429] == pytest.approx(found.sent / 4, abs=1.5)


def test_shapes_of_requests() -> None:
    texts = [f"text {i}" for i in range(5)]
    with server() as (url, asked):
        put(Load(url, seconds=0.5, warmup=0.0, key="k1"), texts, 40)
        assert {path for path, _, _ in asked} == {"/embed"}
        assert {body["inputs"] for _, body, _ in asked} == set(texts)
        assert {key for _, _, key in asked} == {"Bearer k1"}
    with server() as (url, asked):
        found = put(Load(url, "openai", path="/embeddings", model="m", seconds=0.5, warmup=0.0, clients=3), texts, None)
        assert found.rate is None
        assert {(path, body["model"]) for path, body, _ in asked} == {("/embeddings", "m")}
        assert {body["input"] for _, body, _ in asked} == set(texts)


def test_the_command_stops_at_the_limit(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}])
    wanted = ["--texts", str(rows), "--seconds", "1", "--warmup", "0", "--json", str(tmp_path / "found.json")]
    with server(stall=(0.1, 2.5)) as (url, _):
        code, out, err = call("bench", "serve", url, *wanted, "--rates", "5,10", "--limit-ms", "500")
    assert code == 0
    assert "5 a second: p99" in err
    assert "10 a second" not in err
    (row,) = json.loads((tmp_path / "found.json").read_text("utf8"))
    assert row["rate"] == 5
    assert row["answered"] == row["sent"]
    assert "answers/s" in out
    refused = [(["--rates", "5,b"], "--rates is a list of numbers, got '5,b'"), (["--shape", "x"], "unknown shape")]
    for flags, says in refused:
        code, _, err = call("bench", "serve", "http://127.0.0.1:9", "--texts", str(rows), *flags)
        assert code == 2
        assert says in err


def test_loads_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="rate must be positive, got 0"):
        put(Load("http://127.0.0.1:9"), ["a"], 0)
    with pytest.raises(OptionError, match="a load needs texts"):
        put(Load("http://127.0.0.1:9"), [], 1)
    with pytest.raises(ServeError, match=r"nothing answers at http://127.0.0.1:9/embed: .*; start it first"):
        put(Load("http://127.0.0.1:9"), ["a"], 1)
