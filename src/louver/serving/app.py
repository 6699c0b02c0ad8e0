"""`create_app`: the routes of every shape in front of a house of bundles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from louver.errors import LouverError
from louver.serving.api import hub, kserve, native, openai, page, tei, watch
from louver.serving.api.replies import reply, status_of
from louver.serving.guard import Guard
from louver.serving.house import House
from louver.versions import versions


def create_app(house: House, *, keys: Sequence[str] = (), open_metrics: bool = True) -> FastAPI:
    """Return an application; the house is opened when it starts, and drained when it ends.

    Args:
        house: what answers.
        keys: of which a request must have one, health apart; nobody needs one if empty. Only with keys can bundles be
            loaded anew over HTTP.
        open_metrics: /metrics needs no key.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await house.open()
        try:
            yield
        finally:
            await house.close()

    app = FastAPI(
        title="louver",
        version=versions().get("louver", "0"),
        description="Encoders that read long texts: embeddings, labels, spans, answers.",
        lifespan=life,
    )
    app.include_router(page.router())
    for api in (native, tei, openai, kserve, hub, watch):
        app.include_router(api.router(house))
    app.include_router(tei.router(house), prefix="/models/{model}")  # the first bundle answers at the root too
    app.include_router(hub.router(house, ""), prefix="/models/{model}")
    if keys:
        app.include_router(watch.admin(house))

    @app.exception_handler(LouverError)
    async def told(request: Request, error: LouverError) -> Response:
        status, kind, headers = status_of(error)
        return _refusal(request, status, kind, str(error), **headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        broken = first["type"] == "json_invalid"
        said = "the body is no JSON" if broken else f"{where or 'the body'}: {first['msg']}"
        return _refusal(request, 400 if broken else 422, "validation", said)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _refusal(request, error.status_code, "refused", str(error.detail), **dict(error.headers or {}))

    paths = [*watch.OPEN, *page.OPEN, *(["/metrics"] if open_metrics else [])]
    app.add_middleware(Guard, body_bytes=house.limits.body_bytes, keys=keys, open_paths=paths, metrics=house.metrics)
    return app


def _refusal(request: Request, status: int, kind: str, message: str, **headers: str) -> Response:
    """Return an error in the shape of the API that was asked."""
    message = message.encode("utf8", "replace").decode()  # it may quote what no JSON can hold
    if request.url.path.startswith("/v1/"):
        content: dict[str, object] = {"error": {"message": message, "type": kind, "param": None, "code": kind}}
    else:
        content = {"error": message, "error_type": kind}
    return reply(content, None, status, **headers)
