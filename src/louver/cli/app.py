"""What all commands share: the app, how errors are told, options that several commands have."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from louver.errors import LouverError
from louver.storage import write_text

P = ParamSpec("P")
app = typer.Typer(
    help="Long, small, fast encoders at a known price.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
bench_app = typer.Typer(help="Race contenders on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)
_debug = False

FAILED_ITEMS = 3


@app.callback()
def _main(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    global _debug
    _debug = debug


def command(example: str, group: typer.Typer = app) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command whose help ends with an example and whose user errors are one line and exit code 2."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except (LouverError, ValidationError, PermissionError, IsADirectoryError) as error:
                if _debug:
                    raise
                err.print(f"[red]error[/red] {_escaped(_one_line(error))}", highlight=False)
                raise typer.Exit(2) from None

        name = function.__name__.removesuffix("_")
        group.command(name, epilog=f"Example:  {example}", no_args_is_help=True)(guarded)
        return guarded

    return register


def _one_line(error: LouverError | ValidationError | OSError) -> str:
    """Say what an option got and what it wants."""
    if isinstance(error, LouverError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read: {error.strerror}; give a file that this user may read"
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"] if "ctx" in first else first["msg"])
    name = ".".join(str(part).replace("_", "-") for part in first["loc"])
    return f"--{name}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


def say(text: str) -> None:
    """Tell on standard error what happens; of several processes the first one tells."""
    if os.environ.get("RANK", "0") != "0":
        return
    err.print(_escaped(text), highlight=False)


def save_json(file: Path | None, data: Any) -> None:
    """Write figures to a file, if one was named."""
    if file is not None:
        write_text(file, json.dumps(data, indent=1, ensure_ascii=False))


def show(report: dict[str, Any]) -> None:
    """Print the table of a report."""
    from louver.report.page import table_rows

    head, body = table_rows(report)
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def done(bundle: Any, json_file: Path | None) -> None:
    """Say where a new bundle is, and print what its last step measured."""
    if os.environ.get("RANK", "0") != "0":
        return
    record = bundle.card.history[-1]
    figures = {"step": record.step, "seconds": record.seconds, "numbers": record.numbers}
    save_json(json_file, figures)
    say(f"wrote {bundle.path}")
    numbers = {name: value for name, value in record.numbers.items() if name != "curves"}  # hundreds of lines
    out.print_json(json.dumps({**figures, "numbers": numbers}))
