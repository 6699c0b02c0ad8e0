"""What a server counts, for Prometheus. No text, and nothing that a client chose, becomes a label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from louver.serving.batcher import Call
from louver.serving.served import Answers, Served

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = Counter("louver_requests", "Requests, by path and status.", ["path", "status"], **own)
        self._seconds = Histogram(
            "louver_request_seconds",
            "Time of a request, and of its parts.",
            ["model", "part"],
            buckets=_SECONDS,
            **own,
        )
        self._texts = Counter("louver_texts", "Texts, answered or failed.", ["model", "outcome"], **own)
        self._tokens = Counter(
            "louver_tokens",
            "Tokens of texts read and cut, and computed with specials and padding.",
            ["model", "kind"],
            **own,
        )
        self._truncated = Counter("louver_truncated_texts", "Texts that were not read to their end.", ["model"], **own)
        self._rows = Histogram("louver_batch_rows", "Rows a call.", ["model"], buckets=_ROWS, **own)
        self._batch = Histogram(
            "louver_batch_tokens", "Tokens a call, with padding.", ["model"], buckets=_TOKENS, **own
        )
        self._call = Histogram(
            "louver_call_seconds", "Time of a call of the engine.", ["model"], buckets=_SECONDS, **own
        )
        self._padding = Counter("louver_padding_tokens", "Tokens of padding that were computed.", ["model"], **own)
        self._house = Gauge("louver_texts_in_house", "Texts that have no answer yet.", ["model"], **own)
        self._waiting = Gauge("louver_waiting_rows", "Rows that no worker has yet.", ["model"], **own)
        self._restarts = Gauge("louver_worker_restarts", "Workers that had to be replaced.", ["model"], **own)
        self._resident = Gauge("louver_worker_resident_bytes", "Resident memory of the workers.", ["model"], **own)
        self._same = Counter(
            "louver_shadow_agreement", "Sum of agreements of a shadow's answers, 0 to 1.", ["model"], **own
        )
        self._shadowed = Counter(
            "louver_shadow_texts", "Texts that a shadow answered, or was too busy for.", ["model", "outcome"], **own
        )
        self._slower = Histogram(
            "louver_shadow_extra_seconds",
            "How much longer a shadow took.",
            ["model"],
            buckets=(-1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10),
            **own,
        )

    def requested(self, path: str, status: int) -> None:
        """Count a request; the path is the route's, not the client's."""
        self._requests.labels(path, str(status)).inc()

    def answered(self, model: str, found: Answers, seconds: float) -> None:
        """Count a request's texts and its time."""
        failed = sum(one.error is not None for one in found.predictions)
        self._texts.labels(model, "failed").inc(failed)
        self._texts.labels(model, "answered").inc(len(found.predictions) - failed)
        self._tokens.labels(model, "read").inc(sum(one.tokens_read for one in found.predictions))
        self._tokens.labels(model, "cut").inc(sum(one.tokens_cut for one in found.predictions))
        self._truncated.labels(model).inc(sum(one.tokens_cut > 0 and one.error is None for one in found.predictions))
        timing = found.timing
        parts = {"tokenization": timing.tokenization, "queue": timing.queue, "inference": timing.inference}
        for part, took in {**parts, "total": seconds}.items():
            self._seconds.labels(model, part).observe(took)

    def called(self, model: str, call: Call) -> None:
        """Count a call of the engine."""
        self._rows.labels(model).observe(call.rows)
        self._batch.labels(model).observe(call.computed)
        self._call.labels(model).observe(call.seconds)
        self._tokens.labels(model, "computed").inc(call.computed)
        self._padding.labels(model).inc(call.computed - call.tokens)

    def shadowed(self, model: str, same: Sequence[float], extra_seconds: float) -> None:
        """Count a shadow's answers."""
        self._same.labels(model).inc(sum(same))
        self._shadowed.labels(model, "answered").inc(len(same))
        self._slower.labels(model).observe(extra_seconds)

    def shadow_skipped(self, model: str, texts: int) -> None:
        """Count texts that a shadow did not get."""
        self._shadowed.labels(model, "skipped").inc(texts)

    def text(self, served: Sequence[Served]) -> bytes:
        """Return everything in Prometheus' text format."""
        for one in served:
            self._house.labels(one.name).set(one.in_house)
            self._waiting.labels(one.name).set(one.waiting)
            workers = (*one.workers, *one.long_workers)
            self._restarts.labels(one.name).set(sum(worker.restarts for worker in workers))
            self._resident.labels(one.name).set(sum(_resident(worker.pid) for worker in workers))
        return generate_latest(self.registry)


def _resident(pid: int | None) -> int:
    """Return a process's resident bytes; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
