"""What stands before every route: size, keys, ids, the log, and clients that go away. Plain ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from louver.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("louver.serving")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
REQUEST_ID = "x-request-id"


class Guard:
    """Reads a request whole before the application sees it.

    A body that is too large is refused while it comes in; a request without a key is refused before its body is read.
    A client that goes away ends its work. Every answer has a request id, and every request a line in the log, without
    its text.

    Args:
        app: what answers.
        body_bytes: a body at most.
        keys: of which a request must have one; nobody needs one if empty.
        open_paths: that need no key.
        metrics: that count requests.
    """

    def __init__(
        self, app: App, *, body_bytes: int, keys: Sequence[str], open_paths: Sequence[str], metrics: Metrics
    ) -> None:
        self.app, self.body_bytes, self.metrics = app, body_bytes, metrics
        self.keys = [key.encode() for key in keys]
        self.open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        status = 499  # the client went away before there was an answer

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            body = b"" if refusal else await self._body(receive)
            if body is None:
                refusal = (413, f"a request has at most {self.body_bytes} bytes; send several smaller ones")
            if refusal:
                await _refuse(answer, *refusal)
            else:
                await self._answer(scope, body or b"", receive, answer)
        except _GoneError:
            pass
        except Exception:
            _log.exception("a fault of our own", extra={"request_id": request_id})
            if status == 499:
                await _refuse(answer, 500, f"a fault of the server's own; its log has it under {request_id}")
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self.metrics.requested(route, status)
            told = {"request_id": request_id, "method": scope["method"], "path": route, "status": status}
            _log.info("request", extra={**told, "ms": round(1000 * (time.monotonic() - began), 2)})

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if self.keys and scope["path"] not in self.open_paths:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            key = (token if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip().encode()
            # all are compared, so that the time says nothing of which is near
            if not sum(hmac.compare_digest(key, one) for one in self.keys):
                return 401, "this server wants an API key; send it as 'Authorization: Bearer KEY'"
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.body_bytes:
            return 413, f"a request has at most {self.body_bytes} bytes, got {length}; send several smaller ones"
        return None

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body, or None if it is too large."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.body_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Let the application answer, and stop it if the client goes away."""
        given = False
        gone = asyncio.create_task(_disconnect(receive))

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        work = asyncio.ensure_future(self.app(scope, replay, send))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
                raise _GoneError
            await work
        finally:
            gone.cancel()
            work.cancel()


class _GoneError(Exception):
    """The client went away."""


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error, "error_type": "refused" if status < 500 else "fault"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class JsonLines(logging.Formatter):
    """Log records as JSON, a line each."""

    _FIELDS = ("request_id", "method", "path", "status", "ms", "model")

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in self._FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
