"""The page at the root: a text in, and what the model made of it. Nothing in it comes from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response

HOME = Path(__file__).parents[1] / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {file.name: (file.read_bytes(), _TYPES[file.suffix]) for file in HOME.iterdir() if file.suffix in _TYPES}
OPEN = ("/", *(f"/page/{name}" for name in _FILES))
"""Paths that need no key: they say nothing of what is served."""
_HEADERS = {
    # whatever a text or a label holds, the page runs nothing but its own file, and asks nobody but its server
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def router() -> APIRouter:
    """Return the routes."""
    routes = APIRouter(include_in_schema=False)

    def route(path: str, name: str) -> None:
        body, kind = _FILES[name]

        @routes.get(path)
        async def file() -> Response:
            return Response(body, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    route("/", "index.html")
    for name in _FILES:
        route(f"/page/{name}", name)
    return routes
