"""`serve`: an application on a port, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("louver.serving", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(log_level.upper())
    logging.getLogger("uvicorn").handlers = []  # its records reach uvicorn.error's handler
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

    asyncio.run(live())
    return 0 if server.started else 1
