"""Commands that measure attention and show patterns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from louver.cli.app import bench_app, command, out, save_json, say
from louver.cli.options import JsonFile
from louver.errors import OptionError


@command(
    'louver bench attention --pattern "window(128) | global(1)" --lengths 1024,4096 --json attention.json', bench_app
)
def attention(
    pattern: Annotated[str, typer.Option(help="Who may attend to whom.")] = "window(128) | global(1)",
    lengths: Annotated[str, typer.Option(help="Tokens of the texts: 1024,4096.")] = "1024,2048,4096",
    head_dim: Annotated[int, typer.Option(help="Numbers a head.")] = 64,
    impls: Annotated[str, typer.Option(help="Backends: dense,gathered,chunked,flex,flash,auto.")] = "dense,gathered",
    backward: Annotated[bool, typer.Option(help="Compute the gradients too.")] = False,
    rounds: Annotated[int, typer.Option(help="Turns that count.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure memory too, in a fresh process each.")] = True,
    json_file: JsonFile = None,
) -> None:
    """Race attention backends along a pattern, against dense SDPA and plain steps over all pairs."""
    from louver.attention import BACKENDS
    from louver.errors import unknown
    from louver.measure.attention import bench

    if not all(part.strip().isdigit() for part in lengths.split(",")):
        raise OptionError(f"--lengths is a list of numbers, got {lengths!r}; write 1024,4096")
    names = [name.strip() for name in impls.split(",") if name.strip()]
    for name in names:
        if name != "auto" and name not in BACKENDS:
            raise OptionError(unknown("impl", name, ["auto", *BACKENDS]))
    shared: dict[str, Any] = {"backward": backward, "rounds": rounds, "memory": memory, "say": say}
    rows = bench(pattern, [int(part) for part in lengths.split(",")], head_dim=head_dim, impls=names, **shared)
    save_json(json_file, [row.to_json() for row in rows])
    head = ("tokens", "impl", "ms", "MB", "x SDPA", "x eager", "pair ratio", "efficiency", "error")
    table = Table(*head, title=f"{pattern}, head dim {head_dim}{', forward and backward' if backward else ''}")
    for row in rows:
        memory_mb = "–" if row.peak_mb is None else f"{row.peak_mb:,.0f}"
        eager = "–" if row.speedup_vs_eager is None else f"{row.speedup_vs_eager:.2f}"
        figures = (f"{row.ms:,.2f}", memory_mb, f"{row.speedup_vs_dense:.2f}", eager, f"{row.pair_ratio:.2f}")
        table.add_row(f"{row.length:,}", row.impl, *figures, f"{row.efficiency:.2f}", f"{row.max_error:.1e}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@command('louver patterns "window(128) | global(1)" --length 4096')
def patterns(
    pattern: Annotated[
        str, typer.Argument(help="A pattern; calibrate: measure once what auto chooses by; recommend: for --model.")
    ],
    model: Annotated[str | None, typer.Option(help="Checkpoint that a pattern is recommended for.")] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens of the text.")] = 4096,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="Numbers a head.")] = 64,
    png: Annotated[Path | None, typer.Option(help="Also write a picture.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Show a pattern: its picture, and what it costs beside dense attention."""
    from dataclasses import asdict

    from louver.patterns import parse, to_json
    from louver.patterns import picture as pictures

    if pattern == "calibrate":
        from louver.attention.cost import cache_file, calibrate

        rates = asdict(calibrate())
        save_json(json_file, rates)
        out.print_json(json.dumps(rates))
        say(f"wrote {cache_file()}")
        return
    if pattern == "recommend":
        from louver.encoders import recommend

        if model is None:
            raise OptionError("louver patterns recommend needs a model; give --model NAME")
        advice = recommend(model, length)
        speedup = "" if advice.attention_speedup is None else f", {advice.attention_speedup}x in attention"
        say(f"{advice.reason}{speedup}")
        pattern = str(advice.pattern)
    found = parse(pattern)
    cost = found.cost(length, heads, head_dim)
    named = {"pattern": str(found), "json": to_json(found), "length": length}
    figures = {**named, **asdict(cost), "pair_ratio": cost.pair_ratio}
    save_json(json_file, figures)
    print(pictures.terminal(found.at(length), min(length, 2048)))  # noqa: T201 - rich would wrap the picture
    out.print(f"{found} at {length:,} tokens", markup=False)
    out.print(f"{cost.pairs:,} of {length**2:,} pairs: at most {cost.pair_ratio:.1f}x", highlight=False)
    out.print(f"{cost.flops / 1e9:.2f} GFLOP in blocks, {cost.dense_flops / 1e9:.2f} dense, a layer", highlight=False)
    if png is not None:
        say(f"wrote {pictures.png(found.at(length), png, min(length, 2048))}")
