"""Servers of the same weights, one after the other: 16 clients in a closed loop, then Poisson arrivals at rising rates.

    python benchmarks/peers/work.py work.jsonl
    python benchmarks/peers/serve.py work.jsonl --json serve.json

The first contender's p99 in the closed loop is the limit: of each one the highest rate is told at which its p99 is no
worse. `--mixed` asks louver's server for short texts while texts of 4,096 tokens come too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run import HOME, bundles, environment

from louver.measure.load import Load, Loaded, put
from louver.measure.machine import describe
from louver.text.rows import read_rows

STEP = 1.15


def contenders(made: dict[str, Path], port: int) -> dict[str, tuple[list[str], dict[str, Any], str]]:
    """Return commands, what a load asks, and the path that says that a server is ready."""
    louver = [
        sys.executable,
        "-m",
        "louver",
        "serve",
        f"embed={made['onnx']}",
        "--port",
        str(port),
        "--truncate",
        "head",
    ]
    infinity = [
        str(Path(environment("infinity")).with_name("infinity_emb")),
        *["v2", "--model-id", str(made["plain"].resolve()), "--engine", "torch", "--device", "cpu"],
        *["--no-bettertransformer", "--no-model-warmup", "--port", str(port)],
    ]
    openai = {"shape": "openai", "path": "/embeddings", "model": str(made["plain"].resolve())}
    return {
        "infinity, torch": (infinity, openai, "/health"),
        "louver, onnxruntime": (louver, {}, "/health/ready"),
        "louver, openvino": ([*louver, "--engine", "openvino"], {}, "/health/ready"),
    }


@contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[str]:
    """Start a server, wait until it is ready, and stop it."""
    url = f"http://127.0.0.1:{port}"
    with (HOME / "server.log").open("a") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        )
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(url + ready, timeout=5) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.2)
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended; see {HOME / 'server.log'}")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def highest(load: Load, texts: list[str], start: float, limit: float) -> list[Loaded]:
    """Raise the rate until the p99 is over the limit, or not everything is answered."""
    found = []
    rate = start
    while True:
        found.append(put(load, texts, rate))
        print(f"  {rate:.1f}/s: p50 {found[-1].p50_ms:.0f}, p99 {found[-1].p99_ms:.0f} ms", flush=True)
        if not found[-1].p99_ms <= limit or found[-1].answered < found[-1].sent:
            return found
        rate *= STEP


def mixed(url: str, texts: list[str], seconds: float, rate: float) -> dict[str, Any]:
    """Measure short texts alone, and while long ones come at a tenth of a request a second."""
    short = [text for text in texts if len(text) < 1000]
    long = ["the cabinet met on Monday to discuss the budget " * 450]
    load = Load(url, seconds=seconds)
    alone = put(load, short, rate)
    beside: list[Loaded] = []
    other = threading.Thread(target=lambda: beside.append(put(Load(url, seconds=seconds + 5, warmup=0.0), long, 0.1)))
    other.start()
    together = put(load, short, rate)
    other.join()
    return {"alone": alone.to_json(), "beside long texts": together.to_json(), "long texts": beside[0].to_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--only", help="names of contenders begin with one of these, comma between them")
    parser.add_argument("--limit-ms", type=float, help="in the place of the first contender's p99")
    parser.add_argument("--mixed", type=Path, help="a bundle that reads 4,096 tokens")
    parser.add_argument("--rate", type=float, default=15, help="of short texts, with --mixed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    texts = [str(row["text"]) for row in read_rows(given.work)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rows: dict[str, Any] = {}
    if given.mixed:
        command = [sys.executable, "-m", "louver", "serve", f"embed={given.mixed}", "--port", str(port)]
        with running([*command, "--truncate", "head"], port, "/health/ready") as url:
            rows = mixed(url, texts, given.seconds, given.rate)
    limit = given.limit_ms
    for name, (command, asked, ready) in contenders(bundles(), port).items() if not given.mixed else ():
        if given.only and not name.startswith(tuple(given.only.split(","))):
            continue
        with running(command, port, ready) as url:
            load = Load(url, seconds=given.seconds, **asked)
            closed = put(load, texts, None)
            limit = limit or closed.p99_ms
            print(f"{name}: {closed.per_s:.1f}/s with 16 clients, p99 {closed.p99_ms:.0f} ms", flush=True)
            alone = put(Load(url, seconds=given.seconds, clients=1, **asked), texts, None)
            raised = highest(load, texts, 0.5 * closed.per_s, limit)
            good = [one.rate for one in raised if one.p99_ms <= limit and one.answered == one.sent]
            rows[name] = {
                "closed": closed.to_json(),
                "one client": alone.to_json(),
                "rates": [one.to_json() for one in raised],
                "highest": max(good, default=None),
            }
    print(json.dumps({name: row.get("highest", row) for name, row in rows.items()}, indent=1))
    if given.json:
        given.json.write_text(
            json.dumps({"machine": describe(), "limit_ms": limit, "rows": rows}, indent=1) + "\n", "utf8"
        )


if __name__ == "__main__":
    main()
