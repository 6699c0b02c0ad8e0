"""`report.json` and `report.html` of a run: every contender on the same test texts, the same machine, in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from louver.errors import OptionError
from louver.measure.evaluate import Evaluation, agreement, evaluate
from louver.measure.intervals import difference, relative_drop
from louver.measure.machine import describe
from louver.measure.speed import LENGTHS, Speed, peak_memory_mb, race, text_of_length
from louver.report.contenders import Contender, answer_in_own_process, where
from louver.report.page import page
from louver.tasks import Splits, metric
from louver.text import Tokenizer
from louver.versions import versions

Say = Callable[[str], None]


def write_report(
    directory: Path,
    recipe: str,
    contenders: Sequence[Contender],
    data: Splits,
    *,
    metric_name: str | None,
    reference: str,
    documents: int,
    rounds: int,
    seed: int,
    say: Say,
) -> dict[str, Any]:
    """Score, time and weigh every contender, and write the report.

    Args:
        directory: run directory.
        recipe: the resolved recipe, for the page.
        contenders: baselines first; names are unique.
        data: test is read here, and nowhere else.
        metric_name: the kind's default if None.
        reference: name of the contender that drops are counted from.
        documents: test texts given at once, for documents/s.
        rounds: turns of every contender.
        seed: of the resampling.
        say: told each thing that happens.

    Returns:
        What `report.json` holds.
    """
    opened = {}
    found: dict[str, Evaluation] = {}
    for contender in contenders:
        say(f"test: {contender.name} answers {len(data.test)} texts")
        opened[contender.name] = contender.open()
        found[contender.name] = evaluate(
            contender.bundle,
            data.test,
            metric_name=metric_name,
            answers=opened[contender.name],
            thresholds=contender.thresholds,
            seed=seed,
        )
    texts = [e.text for e in data.test[:documents]]
    tokenizer = Tokenizer.open(contenders[0].bundle.path)
    longest = max(c.bundle.card.max_length for c in contenders)
    by_length = {
        n: text_of_length([e.text for e in data.test], n, lambda t: len(tokenizer.encode([t])[0]) + tokenizer.specials)
        for n in LENGTHS
        if n <= longest
    }
    speeds = race(opened, texts, by_length, rounds=rounds, say=say)
    memory = {}
    for contender in contenders:
        say(f"memory: {contender.name}")
        memory[contender.name] = peak_memory_mb(answer_in_own_process, contender, [*by_length.values(), *texts])
    task_kind = contenders[0].bundle.card.kind or "single"
    name, scorer = metric(task_kind, metric_name)
    base = next((c for c in contenders if c.name == reference), None)
    if base is None:
        raise OptionError(f"no contender is named {reference!r}; there are: {', '.join(c.name for c in contenders)}")
    baselines = [c for c in contenders if c.kind == "baseline"]
    rows = []
    for contender in contenders:
        mine, reading = found[contender.name], found[base.name]
        drop = relative_drop(scorer, mine.truth, reading.decisions, mine.decisions, seed=seed)
        rows.append(
            {
                "name": contender.name,
                "kind": contender.kind,
                "accepted": contender.accepted,
                "score": mine.score.to_json(),
                "relative_drop": None if contender is base else {k: v for k, v in drop.to_json().items() if k != "n"},
                "documents_per_s": round(speeds[contender.name].documents_per_s, 3),
                "p50_ms": {str(n): speeds[contender.name].p50_ms[n] for n in LENGTHS},
                "memory_mb": round(memory[contender.name], 1),
                "size_mb": round(contender.size_mb(), 2),
                "speedups": _speedups(contender, baselines, speeds),
                "agreement": round(agreement(mine.decisions, reading.decisions), 4),
                "command": contender.command(),
                "gain_over": {
                    b.name: difference(scorer, mine.truth, found[b.name].decisions, mine.decisions, seed=seed).to_json()
                    for b in baselines
                    if b is not contender
                },
                "bundle": where(contender, directory),
                "note": contender.note,
            }
        )
    report = {
        "machine": describe(),
        "versions": versions(),
        "data": {
            "n_train": len(data.train),
            "n_validation": len(data.validation),
            "n_test": len(data.test),
            "dropped": data.dropped,
        },
        "metric": name,
        "reference": reference,
        "contenders": rows,
        "recipe": recipe,
    }
    _write(directory / "report.json", json.dumps(report, indent=1))
    last = [c for c in contenders if c.kind == "bundle" and c.accepted][-1]
    truth, decisions = found[last.name].truth, found[last.name].decisions
    _write(
        directory / "report.html", page(report, last.bundle.card, _confusion(truth, decisions, task_kind), last.name)
    )
    say(f"report: {directory / 'report.html'}")
    return report


def _speedups(contender: Contender, baselines: Sequence[Contender], speeds: dict[str, Speed]) -> dict[str, float]:
    mine = speeds[contender.name].documents_per_s
    return {b.name: round(mine / speeds[b.name].documents_per_s, 3) for b in baselines if b is not contender}


def _confusion(truth: np.ndarray, decisions: np.ndarray, kind: str) -> np.ndarray | None:
    """Count (true, predicted) pairs of one label; of several, (missed, right, false) of each label; None of numbers."""
    if kind == "single":
        size = int(max(truth.max(), decisions.max())) + 1
        table = np.zeros((size, size), int)
        np.add.at(table, (truth, decisions), 1)
        return table
    if kind == "multi":
        wanted, given = truth > 0.5, decisions > 0.5
        return np.stack([(wanted & ~given).sum(0), (wanted & given).sum(0), (~wanted & given).sum(0)], 1)
    return None


def _write(file: Path, text: str) -> None:
    """Replace a file in one move."""
    draft = file.with_name(f".{file.name}.partial")
    draft.write_text(text, "utf8")
    draft.replace(file)
