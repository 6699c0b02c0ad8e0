"""Hours of a server's life in minutes: bad requests, clients that leave, workers that are killed; memory stays flat.

The short form runs with the tests; `make soak` runs ten minutes, and ten thousand clients that leave.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
import psutil
import pytest
from tests.serving.conftest import Live, Start
from tests.serving.test_reliability import pids, until

from louver.bundle import Bundle

WORDS = ["red", "rose", "sea", "sky", "frog", "moss", "fire", "ice"]
OVERLOADED = (429, 503)
"""What a server may say to a good request when it has too much to do, or a worker was killed."""


def good(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=int(rng.lognormvariate(3.5, 1.2)) + 1))


def requests(rng: random.Random) -> list[tuple[str, bytes, tuple[int, ...]]]:
    """Return one request of each kind: its path, its body, and the statuses that are right."""
    text = good(rng)
    return [
        ("/embed", f'{{"inputs": "{text}"}}'.encode(), (200, *OVERLOADED)),
        ("/answer", f'{{"inputs": ["{text}", "\\ud800", "", 7]}}'.encode(), (200, *OVERLOADED)),
        ("/v1/embeddings", f'{{"model": "embed", "input": ["{text}"]}}'.encode(), (200, *OVERLOADED)),
        ("/tokenize", f'{{"inputs": "{text}"}}'.encode(), (200, *OVERLOADED)),
        ("/predict", b'{"inputs": "the sea"}', (422,)),  # this bundle embeds
        ("/embed", b'{"inputs": "the s', (400,)),
        ("/embed", b'{"inputs": []}', (422,)),
        ("/embed", b'{"inputs": "\\ud800"}', (422, *OVERLOADED)),
        ("/embed", b'{"inputs": ["' + b"moss " * 60_000 + b'"]}', (413,)),  # more characters than a text may have
        ("/answer", b'{"inputs": "the sea", "truncate": "somehow"}', (422, *OVERLOADED)),
        ("/models/none/embed", b'{"inputs": "the sea"}', (404,)),
        ("/v2/models/embed/infer", b'{"inputs": [{"name": "x"}]}', (400, 422)),
    ]


def memory(live: Live) -> float:
    """Return the resident memory of the server's process and its workers, in MB."""
    found = psutil.Process().memory_info().rss
    for pid in pids(live):
        found += psutil.Process(pid).memory_info().rss
    return float(found) / 1e6


def live_through(live: Live, seconds: float, kills: int) -> tuple[Counter[int], float, float]:
    """Ask in four threads, and kill workers in between; return statuses, and memory after a third and at the end."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    end = time.monotonic() + seconds

    def client(seed: int) -> None:
        rng = random.Random(seed)
        with httpx.Client(base_url=live.url, timeout=30) as session:  # an answer within that, or it hangs
            while time.monotonic() < end:
                path, body, right = rng.choice(requests(rng))
                try:
                    found = session.post(path, content=body, headers={"content-type": "application/json"})
                except httpx.HTTPError as error:
                    wrong.append(f"{path}: {type(error).__name__}")
                    continue
                statuses[found.status_code] += 1
                if found.status_code not in right:
                    wrong.append(f"{path} {body[:40]!r}: {found.status_code} {found.text[:80]}")

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    early = memory(live)
    for _ in range(kills):
        os.kill(random.Random(0).choice(pids(live)), signal.SIGKILL)
        time.sleep(seconds / 3 / kills)
    for thread in threads:
        thread.join(seconds + 60)
    assert not any(thread.is_alive() for thread in threads), "a request hangs"
    assert wrong == []
    assert live.house.get().in_house == 0
    until(lambda: live.get("/health/ready").status_code == 200)
    return statuses, early, memory(live)


def leave(live: Live, times: int) -> None:
    """Send requests and go away at once."""
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"inputs": ["' + b"moss " * 300 + b'"]}'
    head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    for number in range(times):
        with socket.create_connection((host, int(port))) as one:
            one.sendall(head.encode() + body)
        if number % 500 == 499:
            until(lambda: live.house.get().in_house < 100)
    until(lambda: live.house.get().in_house == 0 and live.house.get().waiting == 0)


@pytest.fixture
def lived(start: Start, embedder: Bundle) -> Callable[[], Live]:
    limits = {"workers": 2, "long_workers": 0, "text_characters": 200_000, "timeout_s": 20}
    return lambda: start({"embed": embedder.path}, limits)


def test_a_short_life(lived: Callable[[], Live]) -> None:
    live = lived()
    statuses, _, _ = live_through(live, 9.0, kills=2)
    assert statuses[200] > 20
    assert {400, 404, 413, 422} <= set(statuses)
    leave(live, 300)
    assert live.post("/embed", {"inputs": "the sea"}).status_code == 200


@pytest.mark.soak
def test_a_long_life(lived: Callable[[], Live]) -> None:
    live = lived()
    statuses, early, late = live_through(live, 600.0, kills=20)
    print(f"{dict(statuses)}; {early:.0f} MB after 200 s, {late:.0f} at the end")  # noqa: T201 - shown by make soak
    assert late <= early * 1.1


@pytest.mark.soak
def test_ten_thousand_clients_that_leave(lived: Callable[[], Live]) -> None:
    live = lived()
    leave(live, 1000)
    early = memory(live)
    leave(live, 9000)
    late = memory(live)
    print(f"{early:.0f} MB after 1,000 that left, {late:.0f} after 10,000")  # noqa: T201 - shown by make soak
    assert late <= early * 1.1
