"""`report.json` and `report.html` of a run: every contender on the same test texts, the same machine, in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from louver.bundle import ACCEPTED
from louver.errors import OptionError
from louver.measure.evaluate import Evaluation, agreement, evaluate
from louver.measure.intervals import difference, relative_drop
from louver.measure.machine import describe
from louver.measure.speed import LENGTHS, Speed, peaks_of_memory, race, text_of_length
from louver.report.contenders import TEST_TEXTS, Contender, answer_in_own_process, where
from louver.report.page import page
from louver.storage import write_text
from louver.tasks import Splits, metric, task_of
from louver.tasks.metrics import Metric
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
    base = next((c for c in contenders if c.name == reference), None)
    if base is None:
        raise OptionError(f"no contender is named {reference!r}; there are: {', '.join(c.name for c in contenders)}")
    rows = [{"text": e.text, "label": e.label} for e in data.test]
    write_text(directory / TEST_TEXTS, "".join(json.dumps(row) + "\n" for row in rows))
    opened = {contender.name: contender.open() for contender in contenders}
    found: dict[str, Evaluation] = {}
    for contender in contenders:
        say(f"test: {contender.name} answers {len(data.test)} texts")
        found[contender.name] = evaluate(
            contender.bundle,
            data.test,
            metric_name=metric_name,
            answers=opened[contender.name],
            thresholds=contender.thresholds,
            seed=seed,
        )
    texts = [e.text for e in data.test[:documents]]
    by_length = _texts_by_length(contenders, data)
    speeds = race(opened, texts, by_length, rounds=rounds, say=say)
    name, scorer = metric(task_of(base.bundle.card).kind, metric_name)
    report: dict[str, Any] = {
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
        "contenders": [_row(c, base, contenders, found, speeds, (name, scorer), directory, seed) for c in contenders],
        "recipe": recipe,
    }
    _save(directory, report)  # hours of work are safe before each contender is opened once more for its memory
    for contender, row in zip(contenders, report["contenders"], strict=True):
        say(f"memory: {contender.name}")
        batches = [*([text] for text in by_length.values()), texts]  # rising, so that each peak is its own
        peaks = [None if p is None else round(p, 1) for p in peaks_of_memory(answer_in_own_process, contender, batches)]
        peaks += [None] * (len(batches) - len(peaks))
        row["memory_mb"] = peaks[-1]
        row["memory_mb_by_length"] = {str(n): peak for n, peak in zip(by_length, peaks, strict=False)}
    _save(directory, report)
    last = [c for c in contenders if c.kind == "bundle" and c.accepted][-1]
    counted = _confusion(found[last.name].truth, found[last.name].decisions, last.bundle.card.kind or "single")
    write_text(directory / "report.html", page(report, last.bundle.card, counted, last.name))
    write_text(directory / ACCEPTED, f"{where(last, directory)}\n")
    say(f"report: {directory / 'report.html'}")
    return report


def _texts_by_length(contenders: Sequence[Contender], data: Splits) -> dict[int, str]:
    """Return one real text of about so many tokens for each length that is timed."""
    tokenizer = Tokenizer.open(contenders[0].bundle.path)
    longest = max(c.bundle.card.max_length for c in contenders)

    def count(text: str) -> int:
        return len(tokenizer.encode([text])[0]) + tokenizer.specials

    return {n: text_of_length([e.text for e in data.test], n, count) for n in LENGTHS if n <= longest}


def _row(
    contender: Contender,
    base: Contender,
    contenders: Sequence[Contender],
    found: dict[str, Evaluation],
    speeds: dict[str, Speed],
    chosen: tuple[str, Metric],
    directory: Path,
    seed: int,
) -> dict[str, Any]:
    """Return what `report.json` says of one contender; its memory is measured later."""
    metric_name, scorer = chosen
    mine, reading, speed = found[contender.name], found[base.name], speeds[contender.name]
    others = [c for c in contenders if c.kind == "baseline" and c is not contender]
    drop = relative_drop(scorer, mine.truth, reading.decisions, mine.decisions, seed=seed).to_json()
    return {
        "name": contender.name,
        "kind": contender.kind,
        "accepted": contender.accepted,
        "score": mine.score.to_json(),
        "relative_drop": None if contender is base else {k: v for k, v in drop.items() if k != "n"},
        "documents_per_s": round(speed.documents_per_s, 3),
        "p50_ms": {str(n): speed.p50_ms[n] for n in LENGTHS},
        "memory_mb": None,
        "size_mb": round(contender.size_mb(), 2),
        "speedups": {b.name: round(speed.documents_per_s / speeds[b.name].documents_per_s, 3) for b in others},
        "agreement": round(agreement(mine.decisions, reading.decisions), 4),
        "command": contender.command(directory, metric_name),
        "gain_over": {
            b.name: difference(scorer, mine.truth, found[b.name].decisions, mine.decisions, seed=seed).to_json()
            for b in others
        },
        "bundle": where(contender, directory),
        "note": contender.note,
    }


def _save(directory: Path, report: dict[str, Any]) -> None:
    write_text(directory / "report.json", json.dumps(report, indent=1))


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
