"""Real servers on real ports, in threads of this process; their workers are processes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from louver.bundle import Bundle
from louver.export import export
from louver.serving.app import create_app
from louver.serving.house import House
from louver.serving.served import Limits


@dataclass
class Live:
    """A server that runs.

    Attributes:
        url: of its root.
        house: what answers; of another thread.
    """

    url: str
    house: House

    def post(self, path: str, content: Any, **rest: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=content, timeout=60, **rest)

    def get(self, path: str, **rest: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **rest)


Start = Callable[..., Live]


def start_server(house: House, stops: list[Callable[[], None]], **options: Any) -> Live:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_app(house, **options)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 120
    while not server.started and thread.is_alive() and time.monotonic() < end:
        time.sleep(0.02)
    assert server.started, "the server did not come up"

    def stop() -> None:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not stop"

    stops.append(stop)
    return Live(f"http://127.0.0.1:{port}", house)


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory, long_bundle: Bundle) -> Bundle:
    return export(long_bundle, into=tmp_path_factory.mktemp("embedder") / "bundle")


def _with_random_head(source: Bundle, into: Path, outputs: int, **about: Any) -> Bundle:
    """Answers for tokens without a training: any answer will do."""
    import torch

    from louver.encoders.pooling import Reader, encoder_of, separator_of
    from louver.training.written import write_reader

    torch.manual_seed(3)
    encoder = encoder_of(source)
    separator = separator_of(source.path, encoder) if about.get("inputs") == "pair" else None
    card = source.card.model_copy(update={"pooling": "none", "golden": None, **about})
    return write_reader(Reader(encoder, "none", outputs, separator=separator), source, card, into, replace=False)


@pytest.fixture(scope="session")
def tagging(tmp_path_factory: pytest.TempPathFactory, long_bundle: Bundle) -> Bundle:
    into = tmp_path_factory.mktemp("tagging") / "bundle"
    return _with_random_head(long_bundle, into, 5, task="tag", labels=["blue", "red"])


@pytest.fixture(scope="session")
def answering(tmp_path_factory: pytest.TempPathFactory, long_bundle: Bundle) -> Bundle:
    into = tmp_path_factory.mktemp("answering") / "bundle"
    return _with_random_head(long_bundle, into, 2, task="answer", inputs="pair", thresholds=[-1e9])


@pytest.fixture(scope="session")
def live(embedder: Bundle, exported: Bundle) -> Iterator[Live]:
    """One that embeds and classifies."""
    stops: list[Callable[[], None]] = []
    limits = Limits(workers=1, request_texts=64, text_characters=100_000, body_bytes=1 << 20)
    yield start_server(House({"embed": embedder.path, "colours": exported.path}, limits), stops)
    for stop in stops:
        stop()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that stop when the test ends."""
    stops: list[Callable[[], None]] = []

    def begin(bundles: dict[str, Path], limits: dict[str, Any] | None = None, **options: Any) -> Live:
        keys = {name: options.pop(name) for name in ("shadows", "truncation") if name in options}
        return start_server(House(bundles, Limits(**{"workers": 1, **(limits or {})}), **keys), stops, **options)

    yield begin
    for stop in stops:
        stop()
