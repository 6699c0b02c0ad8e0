"""Commands that measure attention and servers, and show patterns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from louver.cli.app import bench_app, command, out, save_json, say
from louver.cli.options import BundleDir, JsonFile, TextColumn
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


@command("louver bench engines runs/int8 --texts rows.jsonl", bench_app)
def engines(
    bundle: BundleDir,
    texts: Annotated[Path, typer.Option(help="CSV, TSV, JSONL or Parquet file of texts like those to come.")],
    text: TextColumn = "text",
    rows: Annotated[int, typer.Option(min=1, help="Texts at most.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 3,
    threads: Annotated[int | None, typer.Option(help="Cores to use; all if left out.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Race the engines that are installed over a bundle's own work, and say which is the fastest here."""
    from louver.measure.engines import race_engines
    from louver.text.rows import read_texts

    given = [str(value) for _, value in zip(range(rows), read_texts(texts, text), strict=False)]
    found = race_engines(bundle, given, threads=threads, rounds=rounds, say=say)
    save_json(json_file, [one.to_json() for one in found])
    table = Table("engine", "texts/s", "tokens/s", "difference", title=str(bundle))
    for one in found:
        table.add_row(one.engine, f"{one.texts_per_s:,.1f}", f"{one.tokens_per_s:,.0f}", f"{one.difference:.1e}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@command("louver bench serve http://127.0.0.1:8000 --texts rows.jsonl --rates 20,40,80", bench_app)
def serve(
    url: Annotated[str, typer.Argument(help="Of the server; louver's or another one's.")],
    texts: Annotated[Path, typer.Option(help="CSV, TSV, JSONL or Parquet file: its texts are asked, one a request.")],
    text: TextColumn = "text",
    rates: Annotated[
        str | None, typer.Option(help="Requests a second that come, whether others are answered or not: 20,40.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Without --rates: so many ask again when answered.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long, each rate.")] = 20.0,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds before, that do not count.")] = 3.0,
    limit_ms: Annotated[float | None, typer.Option(help="Stop at the first rate whose p99 is over this.")] = None,
    shape: Annotated[str, typer.Option(help="Of requests: tei or openai.")] = "tei",
    path: Annotated[str | None, typer.Option(help="Where they go: /embed or /v1/embeddings if left out.")] = None,
    model: Annotated[str, typer.Option(help="Named in requests of OpenAI's shape.")] = "default",
    key: Annotated[str | None, typer.Option(help="API key.", envvar="LOUVER_KEY")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Load a server with Poisson arrivals; latencies count from when a request was due."""
    from louver.errors import unknown
    from louver.measure.load import PATHS, Load, put
    from louver.text.rows import read_texts

    if shape not in PATHS:
        raise OptionError(unknown("shape", shape, list(PATHS)))
    asked: list[float | None] = [None]
    if rates is not None:
        try:
            asked = [float(part) for part in rates.split(",")]
        except ValueError:
            raise OptionError(f"--rates is a list of numbers, got {rates!r}; write 20,40") from None
    wanted: dict[str, Any] = {"shape": shape, "path": path, "model": model, "key": key, "seed": seed}
    load = Load(url, seconds=seconds, warmup=warmup, clients=clients, **wanted)
    given = [str(value) for value in read_texts(texts, text)]
    rows = []
    for rate in asked:
        rows.append(put(load, given, rate))
        say(f"{'closed loop' if rate is None else f'{rate:g} a second'}: p99 {rows[-1].p99_ms:.0f} ms")
        if limit_ms is not None and not rows[-1].p99_ms <= limit_ms:
            break
    save_json(json_file, [row.to_json() for row in rows])
    table = Table("due/s", "sent", "answered", "others", "answers/s", "p50 ms", "p90", "p99", "longest", title=url)
    for row in rows:
        others = ", ".join(f"{count}x {status or 'none'}" for status, count in sorted(row.other.items())) or "–"
        latencies = [f"{value:,.0f}" for value in (row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms)]
        due = "–" if row.rate is None else f"{row.rate:g}"
        table.add_row(due, str(row.sent), str(row.answered), others, f"{row.per_s:.1f}", *latencies)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if any(row.to_json()["client_was_late"] for row in rows):
        say("the client itself sent late; measure from another machine, or take lower rates")


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
