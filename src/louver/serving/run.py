"""`serve`: an application on a port, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from louver.serving.app import create_app
from louver.serving.guard import JsonLines
from louver.serving.house import House


def serve(
    house: House,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    keys: Sequence[str] = (),
    open_metrics: bool = True,
    log_level: str = "info",
) -> int:
    """Serve until SIGTERM or SIGINT; then answer what is in the house, and stop.

    Args:
        house: what answers.
        host: address to listen on; 0.0.0.0 for every one.
        port: to listen on.
        keys: of which a request must have one; nobody needs one if empty.
        open_metrics: /metrics needs no key.
        log_level: debug, info, warning or error.

    Returns:
        0, or 1 if the server did not come up.

    Raises:
        LouverError: if a bundle cannot be served.
    """
    app = create_app(house, keys=keys, open_metrics=open_metrics)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(house.limits.timeout_s) + 1,
        server_header=False,
    )
    server = uvicorn.Server(config)

    async def live() -> None:
        await house.open()  # before there is a port, so that what is wrong with a bundle is told as everywhere
        await server.serve()

    with _logging(log_level):
        asyncio.run(live())
    return 0 if server.started else 1


@contextmanager
def _logging(level: str) -> Iterator[None]:
    """Write a JSON line for every record, and leave the loggers as they were."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in ("louver.serving", "uvicorn.error")]
    before = [(one.propagate, one.level) for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.propagate = False
        one.setLevel(level.upper())
    try:
        yield
    finally:
        for one, (propagates, old) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.propagate = propagates
            one.setLevel(old)
