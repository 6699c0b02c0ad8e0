"""Load on a server, as users make it: requests come when they come, whether earlier ones are answered or not.

Arrivals are a Poisson process at a stated rate (open loop). A latency counts from when a request was due, not from when
the client found time to send it: a server that stands still for a second is seen by all whose second it was. Clients
that wait for their answer before they ask again (closed loop) would ask less of a slow server, and miss that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from louver.errors import OptionError, ServeError, need_extra

Shape = Literal["tei", "openai"]
PATHS: dict[Shape, str] = {"tei": "/embed", "openai": "/v1/embeddings"}
_LATE = 0.05
"""Seconds that the client itself may be late at the 99th percentile."""


@dataclass(frozen=True)
class Load:
    """What is asked of a server.

    Attributes:
        url: of the server.
        shape: of the requests: "tei" (``inputs``) or "openai" (``input``).
        path: where they go; the shape's usual one if None.
        model: named in requests of OpenAI's shape.
        seconds: how long requests come.
        warmup: seconds before, that do not count.
        timeout: seconds after which a request is given up.
        clients: with a rate of None, so many ask again as soon as they are answered (closed loop).
        key: sent as a bearer token, if there is one.
        seed: of arrivals and of the order of texts.
    """

    url: str
    shape: Shape = "tei"
    path: str | None = None
    model: str = "default"
    seconds: float = 20.0
    warmup: float = 3.0
    timeout: float = 60.0
    clients: int = 16
    key: str | None = None
    seed: int = 0

    def body(self, text: str) -> bytes:
        """Return a request's body."""
        asked = {"inputs": text} if self.shape == "tei" else {"model": self.model, "input": text}
        return json.dumps(asked).encode()


@dataclass(frozen=True)
class Loaded:
    """What became of it.

    Attributes:
        rate: requests a second that were due; None in a closed loop.
        sent: requests that count.
        answered: of them, with 200.
        other: how many had which other status; 0 stands for none at all.
        per_s: answers a second, until the last one.
        p50_ms: median latency of the answers.
        p90_ms: the latency that nine of ten stay under.
        p99_ms: the latency that 99 of 100 stay under.
        max_ms: the longest.
        late_ms: 99th percentile of how late the client itself sent; beyond 50 ms it was the bottleneck.
    """

    rate: float | None
    sent: int
    answered: int
    other: dict[int, int]
    per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    late_ms: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {**asdict(self), "client_was_late": self.late_ms > 1000 * _LATE}


def arrivals(rate: float, seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Return the times of a Poisson process, in seconds from the start."""
    count = int(rate * seconds + 6 * np.sqrt(rate * seconds) + 10)
    times = np.cumsum(rng.exponential(1 / rate, count))
    return times[times < seconds]


def put(load: Load, texts: Sequence[str], rate: float | None) -> Loaded:
    """Put a load on a server and measure.

    Args:
        load: what is asked.
        texts: of the requests, one each, in an order of their own.
        rate: requests a second; None for a closed loop of `load.clients`.

    Raises:
        OptionError: if the rate is not positive, or there is no text.
        ServeError: if nothing answers at the address.
    """
    need_extra("serve", "httpx")
    if rate is not None and not rate > 0:
        raise OptionError(f"rate must be positive, got {rate}; leave it out for a closed loop")
    if not texts:
        raise OptionError("a load needs texts, got none")
    return asyncio.run(_put(load, texts, rate))


@dataclass
class _Seen:
    due: float
    sent: float
    done: float
    status: int


async def _put(load: Load, texts: Sequence[str], rate: float | None) -> Loaded:
    import httpx

    headers = {"content-type": "application/json"}
    if load.key is not None:
        headers["authorization"] = f"Bearer {load.key}"
    where = load.url.rstrip("/") + (load.path or PATHS[load.shape])
    rng = np.random.default_rng(load.seed)
    bodies = [load.body(text) for text in texts]
    seen: list[_Seen] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(timeout=load.timeout, limits=limits, headers=headers) as client:
        try:
            await client.post(where, content=bodies[0])
        except httpx.TransportError as error:
            raise ServeError(f"nothing answers at {where}: {error or type(error).__name__}; start it first") from None
        began = time.perf_counter()

        async def ask(body: bytes, due: float) -> None:
            sent = time.perf_counter()
            try:
                status = (await client.post(where, content=body)).status_code
            except httpx.TransportError:
                status = 0
            seen.append(_Seen(due, sent, time.perf_counter(), status))

        whole = load.warmup + load.seconds
        order = rng.permutation(len(bodies)).tolist()
        if rate is None:
            await _closed(load.clients, whole, began, order, lambda i: ask(bodies[i], time.perf_counter()))
        else:
            await _open(arrivals(rate, whole, rng) + began, order, lambda i, due: ask(bodies[i], due))
    counted = [one for one in seen if one.due - began >= load.warmup]
    return _summed(rate, counted, began + load.warmup)


async def _open(times: np.ndarray, order: Sequence[int], ask: Callable[[int, float], Any]) -> None:
    tasks = []
    for number, due in enumerate(times.tolist()):
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask(order[number % len(order)], due)))
    await asyncio.gather(*tasks)


async def _closed(clients: int, seconds: float, began: float, order: Sequence[int], ask: Callable[[int], Any]) -> None:
    async def client(number: int) -> None:
        while time.perf_counter() - began < seconds:
            await ask(order[number % len(order)])
            number += clients

    await asyncio.gather(*(client(number) for number in range(clients)))


def _summed(rate: float | None, seen: Sequence[_Seen], began: float) -> Loaded:
    answered = [one for one in seen if one.status == 200]
    other = Counter(one.status for one in seen if one.status != 200)
    if not answered:
        return Loaded(rate, len(seen), 0, dict(other), 0.0, *[float("nan")] * 5)
    waits = np.asarray([one.done - one.due for one in answered]) * 1000
    late = np.asarray([one.sent - one.due for one in seen]) * 1000
    took = max(one.done for one in answered) - began
    figures = [float(np.percentile(waits, p)) for p in (50, 90, 99, 100)] + [float(np.percentile(late, 99))]
    return Loaded(rate, len(seen), len(answered), dict(other), len(answered) / took, *(round(x, 1) for x in figures))
