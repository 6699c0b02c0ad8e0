"""What operators ask: health, metrics, reload."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from louver.serving.api.replies import reply
from louver.serving.house import House

OPEN = ("/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")
"""Paths that need no key."""


class ReloadRequest(BaseModel):
    """What to load anew."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    """Name of a bundle; the first one if left out."""
    path: str | None = None
    """Another directory on the server; the one that it came from if left out."""


def router(house: House) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/health/live")
    async def live() -> Response:
        """Say that the process lives."""
        return reply({"live": True})

    @routes.get("/health")
    @routes.get("/health/ready")
    async def ready() -> Response:
        """Answer a text with every bundle, and say whether all did."""
        found = await house.ready()
        return reply({"ready": found, "models": list(house.served)}, status=200 if found else 503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Return counters in Prometheus' text format."""
        text = house.metrics.text(list(house.served.values()))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def admin(house: House) -> APIRouter:
    """Return the routes that change what is served; for servers that want a key."""
    routes = APIRouter(prefix="/admin", tags=["operation"])

    @routes.post("/reload")
    async def reload(request: ReloadRequest) -> Response:
        """Load a bundle anew and let it take over; no request is lost."""
        fresh = await house.reload(request.model, None if request.path is None else Path(request.path))
        return reply({"model": fresh.name, "digest": fresh.bundle.digest})

    return routes
