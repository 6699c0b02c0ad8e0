"""The command that serves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from louver.cli.app import command
from louver.cli.options import EngineName, Truncate
from louver.errors import DataError, OptionError


@command("louver serve runs/int8 --port 8000")
def serve(
    bundles: Annotated[list[str], typer.Argument(help="Directories of bundles or runs, as DIR or NAME=DIR.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    truncate: Truncate = None,
    engine: EngineName = None,
    shadow: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR: a bundle that gets NAME's texts too, and is only counted.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File of API keys, a line each; with it, requests need one.")
    ] = None,
    closed_metrics: Annotated[bool, typer.Option("--closed-metrics", help="/metrics needs a key too.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that compute; a core each if left out.")] = None,
    long_workers: Annotated[int | None, typer.Option(help="More of them, for long texts.")] = None,
    long_from: Annotated[int | None, typer.Option(help="Tokens from which a text is long.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens computed at a time, padding included.")] = None,
    window_ms: Annotated[float | None, typer.Option(help="How long a text may be passed over for others.")] = None,
    queue: Annotated[int | None, typer.Option(help="Texts in the house; more are refused with 429.")] = None,
    request_texts: Annotated[int | None, typer.Option(help="Texts a request.")] = None,
    request_tokens: Annotated[int | None, typer.Option(help="Tokens a request.")] = None,
    body_bytes: Annotated[int | None, typer.Option(help="Bytes a request.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Seconds until a request has its answer.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Answer over HTTP, in the shapes of text-embeddings-inference, OpenAI, KServe and Hugging Face (/openapi.json)."""
    from louver.serving.house import House
    from louver.serving.run import serve as run
    from louver.serving.served import Limits

    given = {
        "workers": workers,
        "long_workers": long_workers,
        "long_from": long_from,
        "batch_tokens": batch_tokens,
        "window_ms": window_ms,
        "queue": queue,
        "request_texts": request_texts,
        "request_tokens": request_tokens,
        "body_bytes": body_bytes,
        "timeout_s": timeout_s,
    }
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    if log_level not in ("debug", "info", "warning", "error"):
        raise OptionError(f"--log-level is debug, info, warning or error, got {log_level!r}")
    shared: dict[str, Any] = {"truncation": truncate, "engine": engine, "shadows": _named(shadow or [], "--shadow")}
    house = House(_named(bundles, "a bundle"), limits, **shared)
    keys = () if key_file is None else _keys(key_file)
    sys.exit(run(house, host=host, port=port, keys=keys, open_metrics=not closed_metrics, log_level=log_level))


def _named(given: list[str], what: str) -> dict[str, Path]:
    """Read NAME=DIR; a directory alone has its own name."""
    found: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        directory = Path(path if equals else one)
        name = name if equals else directory.resolve().name
        if not name or not str(path if equals else one) or name in found:
            raise OptionError(f"{what} is DIR or NAME=DIR, each with a name of its own, got {one!r}")
        found[name] = directory
    return found


def _keys(file: Path) -> tuple[str, ...]:
    """Read API keys.

    Raises:
        DataError: if there are none.
    """
    try:
        keys = tuple(line.strip() for line in file.read_text("utf8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}); give a file with a key a line") from error
    if not keys:
        raise DataError(f"{file} has no key; write one a line")
    return keys
