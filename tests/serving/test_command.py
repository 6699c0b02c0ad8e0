"""`louver serve`, as it is run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.test_cli import call

from louver.bundle import Bundle


def test_it_serves_until_it_is_told_to_stop(embedder: Bundle, exported: Bundle, tmp_path: Path) -> None:
    """And logs every request as JSON, without its text."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = tmp_path / "keys"
    keys.write_text("\nfirst\nsecond\n", "utf8")
    bundles = [f"embed={embedder.path}", f"colours={exported.path}"]
    options = ["--port", str(port), "--workers", "1", "--long-workers", "0", "--key-file", str(keys)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "louver", "serve", *bundles, *options], stderr=log)
        try:
            end = time.monotonic() + 120
            url = f"http://127.0.0.1:{port}"
            while True:
                assert server.poll() is None, "it ended by itself"
                assert time.monotonic() < end, "it does not come up"
                try:
                    if httpx.get(url + "/health/ready", timeout=30).status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            body = {"inputs": "quorbix"}
            assert httpx.post(url + "/embed", json=body).status_code == 401
            headers = {"authorization": "Bearer second"}
            assert httpx.post(url + "/models/colours/predict", json=body, headers=headers).status_code == 200
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) in (0, -signal.SIGTERM)
        finally:
            server.kill()
            server.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text("utf8").splitlines()]
    requests = [line for line in lines if line["message"] == "request"]
    assert {"/health/ready", "/predict"} <= {line["path"] for line in requests}
    assert all({"time", "level", "request_id", "method", "status", "ms"} <= line.keys() for line in requests)
    assert "quorbix" not in json.dumps(lines)
    assert "Traceback" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none"], "none does not exist; give the directory of a bundle"),
        (["a=x", "a=y"], "a bundle is DIR or NAME=DIR, each with a name of its own, got 'a=y'"),
        (["=x"], "got '=x'"),
        (["a=x", "--shadow", "b=x"], "shadow 'b' stands beside no bundle"),
        (["a=x", "--key-file", "nowhere"], "nowhere cannot be read"),
        (["a=x", "--log-level", "loud"], "got 'loud'"),
        (["a=x", "--workers", "0"], "workers"),
    ],
)
def test_what_cannot_be_served(arguments: list[str], says: str) -> None:
    code, _, err = call("serve", *arguments)
    assert code == 2
    assert says in err
