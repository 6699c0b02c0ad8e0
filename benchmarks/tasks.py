"""Fine-tune a real checkpoint on a real task with several seeds, score the test part, and say what it took.

    python benchmarks/tasks.py ner --seeds 0,1,2 --json ner.json

Splits go by the seed too, so that an interval over seeds holds the luck of the split.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from louver.encoders import extend
from louver.encoders.adapters import AdapterOptions
from louver.measure.evaluate import evaluate
from louver.measure.machine import describe
from louver.tasks import Columns, Example, Splits, make_splits, read_examples
from louver.training import TrainingOptions, finetune

DATA = Path("data")
LIMITS = {"validation": 400, "test": 1000}


@dataclass(frozen=True)
class Experiment:
    """One line of the table."""

    model: str
    text: str
    task: str = "classify"
    columns: tuple[tuple[str, str], ...] = ()
    train: int = 2000
    epochs: int = 1
    batch_size: int = 16
    learning_rate: float | None = None
    max_length: int = 512
    by: str = "random"
    metric: str | None = None
    prompt: str = ""
    adapter: str | None = None
    probe: bool = True
    rows: Callable[[list[tuple[Example, str]]], list[tuple[Example, str]]] = lambda rows: rows


def asked(rows: list[tuple[Example, str]]) -> list[tuple[Example, str]]:
    """Ask for the persons, places or organisations of a sentence; one question, its first answer, or none."""
    questions = {
        "person": "文中提到了哪个人？",
        "place": "文中提到了哪个地方？",
        "organisation": "文中提到了哪个机构？",
    }
    found = []
    for number, (example, part) in enumerate(rows):
        kind = sorted(questions)[number % 3]
        spans = tuple(span for span in example.label if span.label == kind)  # type: ignore[union-attr]
        if len(example.text) >= 20:
            answers = tuple(span._replace(label="") for span in spans)
            found.append((Example(questions[kind], answers, pair=example.text), part))
    return found


def titled(rows: list[tuple[Example, str]]) -> list[tuple[Example, str]]:
    """Does a title belong to this article, or to another one of the same publisher?"""
    by: dict[str, list[Example]] = {}
    for example, _ in rows:
        by.setdefault(str(example.label), []).append(example)
    found = []
    for mine in by.values():
        for number, example in enumerate(mine):
            other = mine[(number + 1) % len(mine)]
            title, label = (example.pair, "same") if number % 2 else (other.pair, "other")
            if title.strip() and example.text.strip():
                found.append((Example(title, label, pair=example.text), ""))
    return found


EXPERIMENTS = {
    "ner": Experiment("minilm-l6", "ner-wnut16", "tag", train=1900, epochs=4, batch_size=8, learning_rate=1e-4),
    "zh-ner": Experiment("me5-small", "zh-ner", "tag", train=4000, epochs=2, prompt="query: ", max_length=256),
    "zh-sentiment": Experiment(
        "me5-small", "zh-sentiment", train=8000, epochs=2, prompt="query: ", max_length=128, learning_rate=1e-4
    ),
    "sentiment": Experiment("minilm-l6", "sentiment", columns=(("group", "movie"),), by="group", max_length=128),
    "pairs": Experiment(
        "minilm-l6", "news-outlet", columns=(("pair", "title"),), rows=titled, train=2000, epochs=2, max_length=128
    ),
    "answers": Experiment(
        "me5-small", "zh-ner", "answer", rows=asked, train=4000, epochs=2, max_length=256, columns=(("label", "spans"),)
    ),
}
for kind in ("lora", "ia3", "bottleneck", "prompt"):
    EXPERIMENTS[f"sentiment-{kind}"] = replace(EXPERIMENTS["sentiment"], adapter=kind)


def splits(one: Experiment, seed: int) -> Splits:
    read_as = "tag" if one.text == "zh-ner" else one.task
    columns = Columns.of(read_as, **dict(one.columns))
    rows = one.rows(read_examples(DATA / "text" / f"{one.text}.jsonl", columns, read_as))
    limits: dict[Any, int] = {"train": one.train, **LIMITS}
    by: Any = one.by
    return make_splits(rows, seed=seed, by=by, drop=["duplicates", "empty", "rare", "unseen"], limits=limits)


def run(name: str, seed: int, home: Path) -> dict[str, Any]:
    one = EXPERIMENTS[name]
    base = home / f"{one.model}-{bool(one.prompt)}"
    if not base.exists():
        extend(DATA / "models" / one.model, into=base, max_length=512, pattern="full", prompt=one.prompt)
    given: dict[str, Any] = {"epochs": one.epochs, "batch_size": one.batch_size, "max_length": one.max_length}
    if one.learning_rate is not None:
        given["learning_rate"] = one.learning_rate
    data = splits(one, seed)
    began = time.perf_counter()
    made = finetune(
        base,
        data,
        into=home / f"{name}-{seed}",
        task=one.task,
        options=TrainingOptions(seed=seed, probe=one.probe, **given),
        adapter=None if one.adapter is None else AdapterOptions(kind=one.adapter),  # type: ignore[arg-type]
        metric_name=one.metric,
        progress=False,
        say=lambda line: print(f"  {line}", flush=True),
    )
    took = time.perf_counter() - began
    numbers = made.card.history[-1].numbers
    found = evaluate(made, data.test, metric_name=one.metric, truncation="head")
    return {
        "experiment": name,
        "seed": seed,
        "metric": found.metric,
        "test": found.score.to_json(),
        "validation": numbers["validation"],
        "epochs": numbers["epochs"],
        "adapter": numbers.get("adapter"),
        "n_train": len(data.train),
        "seconds": round(took, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(EXPERIMENTS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a directory for the bundles that are made")
    given = parser.parse_args(arguments)
    rows = []
    with nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory() as scratch:
        for seed in map(int, given.seeds.split(",")):
            for name in given.names:  # contenders take turns
                rows.append(run(name, seed, Path(scratch)))
                print(json.dumps({k: v for k, v in rows[-1].items() if k != "epochs"}), flush=True)
                if given.json:
                    given.json.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1), "utf8")


if __name__ == "__main__":
    main()
