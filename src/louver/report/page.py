"""`report.html`: one file that works offline, drawn with plotly."""

from __future__ import annotations

import base64
import html
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from louver.bundle import Card
from louver.errors import need_extra
from louver.patterns import ByLength, parse
from louver.patterns.picture import png

_STYLE = """
:root { color-scheme: light dark; --line: #d5dae1; --soft: #f3f5f8; --ink: #1d2733; --mute: #5d6b7a; --good: #1f6f43 }
@media (prefers-color-scheme: dark) { :root { --line: #39434f; --soft: #1c232b; --ink: #e6ebf0; --mute: #97a5b3;
  --good: #6fcf97 } body { background: #12171c } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.5rem } p.mute, td.mute { color: var(--mute) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, .text th, .text td { text-align: left }
.text td { white-space: normal } tr.refused td { color: var(--mute); text-decoration: line-through }
tr.last td { color: var(--good); font-weight: 600 } pre { background: var(--soft); padding: 1rem; overflow-x: auto;
  font-size: .8rem } .pictures { display: flex; flex-wrap: wrap; gap: 1.5rem } figure { margin: 0; max-width: 16rem }
figure img { width: 100%; image-rendering: pixelated; border: 1px solid var(--line) } figcaption { font-size: .8rem }
"""


def page(report: dict[str, Any], card: Card, confusion: np.ndarray | None, last: str) -> str:
    """Return the whole page.

    Args:
        report: what `report.json` holds.
        card: of the last accepted bundle.
        confusion: counts of its test decisions, or None.
        last: its name.
    """
    need_extra("report", "plotly")
    rows = report["contenders"]
    parts = [
        f"<h1>louver report</h1><p class='mute'>{_machine(report)}</p>",
        "<h2>Contenders</h2>",
        _table(report, last),
        "<h2>Accuracy against speed</h2>",
        _plot(_frontier(rows, report["metric"]), first=True),
        "<h2>Latency by length</h2><p class='mute'>One text alone, median.</p>",
        _plot(_latency(rows)),
        "<h2>Memory by length</h2><p class='mute'>One text alone in a fresh process, peak of resident memory.</p>",
        _plot(_memory_by_length(rows)),
        "<h2>Memory and size</h2>",
        _plot(_memory(rows)),
        "<h2>Attention</h2>",
        _pictures(card),
    ]
    if confusion is not None:
        parts += [f"<h2>Where {html.escape(last)} errs</h2>", _plot(_confusion(card, confusion))]
    parts += [
        "<h2>History of the last accepted bundle</h2>",
        _history(card),
        "<h2>Commands</h2>",
        f"<pre>{html.escape(chr(10).join(r['command'] for r in rows))}</pre>",
        "<h2>Recipe, resolved</h2>",
        f"<pre>{html.escape(report['recipe'])}</pre>",
    ]
    head = "<meta charset='utf8'><meta name='viewport' content='width=device-width'><title>louver report</title>"
    head += f"<style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def _machine(report: dict[str, Any]) -> str:
    machine, data = report["machine"], report["data"]
    text = f"{machine['processor']}, {machine['cores']} cores, {', '.join(machine['isa']) or 'no listed ISA'}"
    text += f", {machine['memory_gb']} GiB, {machine['gpu'] or 'no GPU'}, float32 GEMM {machine['gemm_gflops']} GFLOP/s"
    text += f" · {', '.join(f'{k} {v}' for k, v in report['versions'].items())}"
    text += f" · {data['n_train']} training, {data['n_validation']} validation, {data['n_test']} test texts"
    return html.escape(text)


def table_rows(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table that terminal, README and page show."""
    baselines = [r["name"] for r in report["contenders"] if r["kind"] == "baseline"]
    head = [
        "contender",
        f"{report['metric']} [95 %]",
        "docs/s",
        "p50 ms at 512",
        "2,048",
        "4,096",
        "memory MB",
        "size MB",
    ]
    head += [f"speed-up over {name}" for name in baselines]
    body = []
    for row in report["contenders"]:
        score = row["score"]
        refused = "" if row["accepted"] else " (refused)"
        body.append(
            [
                row["name"] + refused,
                f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]",
                f"{row['documents_per_s']:.2f}",
                *("–" if ms is None else f"{ms:,.0f}" for ms in row["p50_ms"].values()),
                "–" if row["memory_mb"] is None else f"{row['memory_mb']:,.0f}",
                f"{row['size_mb']:.1f}",
                *(f"{row['speedups'][name]:.2f}x" if name in row["speedups"] else "–" for name in baselines),
            ]
        )
    return head, body


def _table(report: dict[str, Any], last: str) -> str:
    head, body = table_rows(report)
    lines = ""
    for row, cells in zip(report["contenders"], body, strict=True):
        state = "last" if row["name"] == last else "" if row["accepted"] else "refused"
        filled = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        lines += f"<tr class='{state}'>{filled}</tr>"
    heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    notes = "".join(
        f"<li><b>{html.escape(r['name'])}</b>: {html.escape(r['note'])}</li>" for r in report["contenders"] if r["note"]
    )
    return f"<div class='wide'><table><tr>{heads}</tr>{lines}</table></div><ul class='mute'>{notes}</ul>"


def _plot(figure: Any, *, first: bool = False) -> str:
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7b8794"},
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
        height=420,
    )
    found: str = figure.to_html(full_html=False, include_plotlyjs="inline" if first else False)
    return found


def _frontier(rows: list[dict[str, Any]], metric: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for row in rows:
        score = row["score"]
        figure.add_trace(
            go.Scatter(
                x=[row["documents_per_s"]],
                y=[score["value"]],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [score["high"] - score["value"]],
                    "arrayminus": [score["value"] - score["low"]],
                },
                mode="markers+text",
                text=[row["name"]],
                textposition="top center",
                marker={"size": 12, "symbol": "circle" if row["kind"] == "bundle" else "x"},
                name=row["name"],
                opacity=1 if row["accepted"] else 0.4,
            )
        )
    figure.update_xaxes(title="documents per second", type="log")
    figure.update_yaxes(title=metric)
    return figure


def _latency(rows: list[dict[str, Any]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for row in rows:
        points = [(int(n), ms) for n, ms in row["p50_ms"].items() if ms is not None]
        figure.add_trace(go.Scatter(x=[n for n, _ in points], y=[ms for _, ms in points], name=row["name"]))
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="ms", type="log")
    return figure


def _memory_by_length(rows: list[dict[str, Any]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for row in rows:
        points = [(int(n), mb) for n, mb in row["memory_mb_by_length"].items() if mb is not None]
        figure.add_trace(go.Scatter(x=[n for n, _ in points], y=[mb for _, mb in points], name=row["name"]))
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="MB")
    return figure


def _memory(rows: list[dict[str, Any]]) -> Any:
    import plotly.graph_objects as go

    names = [row["name"] for row in rows]
    figure = go.Figure()
    figure.add_trace(go.Bar(x=names, y=[row["memory_mb"] for row in rows], name="peak resident memory, MB"))
    figure.add_trace(go.Bar(x=names, y=[row["size_mb"] for row in rows], name="size on disk, MB"))
    figure.update_yaxes(title="MB")
    return figure


def _confusion(card: Card, table: np.ndarray) -> Any:
    import plotly.graph_objects as go

    if card.kind == "multi":
        figure = go.Figure()
        for column, name in enumerate(("missed", "right", "false")):
            figure.add_trace(go.Bar(x=card.labels, y=table[:, column], name=name))
        figure.update_layout(barmode="stack")
        return figure
    figure = go.Figure(
        go.Heatmap(z=table, x=card.labels[: len(table)], y=card.labels[: len(table)], colorscale="Blues")
    )
    figure.update_xaxes(title="predicted")
    figure.update_yaxes(title="true", autorange="reversed")
    return figure


def _pictures(card: Card) -> str:
    """Draw each branch of the pattern, shrunk to a text of 64 cells."""
    pattern = parse(card.pattern)
    branches = pattern.branches if isinstance(pattern, ByLength) else ((float("inf"), pattern),)
    figures = []
    for limit, branch in branches:
        tokens = int(min(limit, card.max_length))
        with tempfile.TemporaryDirectory() as scratch:
            data = png(branch, Path(scratch) / "pattern.png", length=min(tokens, 2048), size=256).read_bytes()
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        caption = f"up to {tokens:,} tokens: {branch}"
        image = f"<img alt='{html.escape(str(branch))}' src='{source}'>"
        figures.append(f"<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>")
    return f"<div class='pictures'>{''.join(figures)}</div>"


def _history(card: Card) -> str:
    lines = []
    for record in card.history:
        settings = ", ".join(f"{k}={v}" for k, v in record.settings.items() if v not in (None, "", False))
        seconds = "" if record.seconds is None else f"{record.seconds:.0f} s"
        cells = [html.escape(record.step), seconds, html.escape(settings)]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    table = f"<table class='text'><tr><th>step</th><th>took</th><th>settings</th></tr>{''.join(lines)}</table>"
    return f"<div class='wide'>{table}</div>"
