"""The articles' advice, each piece with it and without it, on real texts and several seeds.

    python benchmarks/ablations.py sparse --seeds 0,1,2 --json sparse.json
    python benchmarks/ablations.py batch --seeds 0,1,2 --json batch.json
    python benchmarks/ablations.py masks --encoder runs/mlm --seeds 0,1,2 --json masks.json

sparse: MiniLM-L3 under window(32) | global(1) on the first 256 tokens of news: a longer warm-up, a lower learning
rate, both, DropEdges. batch: MiniLM-L6 on critics' lines, 16 a step, 32 a step, two times 16 a step. masks: an
encoder with a masked-word head goes on with critics' lines, and is then fine-tuned on their labels: masks drawn anew
or not, 80/10/10 or the mask alone, next sentences asked or not. Each row has the paired difference from the first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import louver
from louver.bundle import Bundle
from louver.measure.evaluate import evaluate
from louver.measure.machine import describe
from louver.tasks import Columns, Splits, make_splits, read_examples
from louver.text.rows import read_rows
from louver.training import PretrainingOptions, TrainingOptions, finetune, pretrain

DATA = Path("data")
Contender = tuple[dict[str, Any], dict[str, Any]]
"""Settings of the pretraining, and of the fine-tuning."""

SPARSE: dict[str, dict[str, Any]] = {
    "as a dense model": {"sparse_advice": False},
    "warm-up +50 %": {"sparse_advice": False, "warmup": 0.15},
    "learning rate × 0.75": {"sparse_advice": False, "learning_rate": 3.75e-5},
    "both": {"sparse_advice": True},
    "DropEdges, 80 % kept": {"sparse_advice": False, "drop_edges": 0.8},
}
BATCH: dict[str, dict[str, Any]] = {
    "16": {"batch_size": 16},
    "32": {"batch_size": 32},
    "two times 16": {"batch_size": 16, "accumulation": 2},
}
MASKS: dict[str, dict[str, Any]] = {
    "dynamic, 80/10/10": {},
    "static": {"static_masks": True},
    "the mask alone": {"masked": 1.0, "replaced": 0.0},
    "next sentence too": {"sentences": "next"},
}


def critics(seed: int) -> Splits:
    rows = read_examples(DATA / "text/sentiment.jsonl", Columns(group="movie"))
    limits: Any = {"train": 2000, "validation": 400, "test": 2000}
    return make_splits(rows, seed=seed, by="group", drop=["duplicates", "empty"], limits=limits)


def news(seed: int) -> Splits:
    rows = read_examples(DATA / "text/news-outlet.jsonl", Columns(date="date"))
    limits: Any = {"train": 600, "validation": 200, "test": 600}
    return make_splits(rows, seed=seed, by="date", drop=["duplicates", "empty", "rare", "unseen"], limits=limits)


def tuned(bundle: Bundle, data: Splits, into: Path, **given: Any) -> tuple[np.ndarray, float]:
    """Fine-tune and return which test texts are answered rightly, and the seconds that it took."""
    began = time.perf_counter()
    made = finetune(bundle, data, into=into, options=TrainingOptions(**given), progress=False)
    took = time.perf_counter() - began
    found = evaluate(made, data.test, truncation="head")
    return found.decisions == found.truth, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("sparse", "batch", "masks"))
    parser.add_argument("--encoder", type=Path, help="of masks: a bundle with a masked-word head")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=4, help="of masks")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    contenders = {"sparse": SPARSE, "batch": BATCH, "masks": MASKS}[given.kind]
    right: dict[str, list[np.ndarray]] = {name: [] for name in contenders}
    beside: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        run = {"sparse": _sparse, "batch": _batch, "masks": _masks}[given.kind](home, given)
        for seed in map(int, given.seeds.split(",")):
            for name, settings in contenders.items():
                found, more = run(seed, settings, home / f"{len(right[name])}-{name.replace('/', '-')}")
                right[name].append(found)
                beside[name].append(more)
                print(json.dumps({"seed": seed, "name": name, "accuracy": found.mean(), **more}), flush=True)
                if given.json:
                    given.json.write_text(json.dumps(_table(right, beside), indent=1), "utf8")
    print(json.dumps(_table(right, beside)["rows"], indent=1))


Run = Callable[[int, dict[str, Any], Path], tuple[np.ndarray, dict[str, Any]]]


def _sparse(home: Path, _: argparse.Namespace) -> Run:
    base = louver.extend(
        DATA / "models/minilm-l3", into=home / "base", max_length=512, pattern="window(32) | global(1)", short="same"
    )

    def run(seed: int, settings: dict[str, Any], into: Path) -> tuple[np.ndarray, dict[str, Any]]:
        found, took = tuned(base, news(seed), into, seed=seed, epochs=2, max_length=256, **settings)
        return found, {"seconds": took}

    return run


def _batch(home: Path, _: argparse.Namespace) -> Run:
    base = louver.extend(DATA / "models/minilm-l6", into=home / "base", max_length=512, pattern="full")

    def run(seed: int, settings: dict[str, Any], into: Path) -> tuple[np.ndarray, dict[str, Any]]:
        found, took = tuned(base, critics(seed), into, seed=seed, epochs=1, max_length=128, **settings)
        return found, {"seconds": took}

    return run


def _masks(home: Path, given: argparse.Namespace) -> Run:
    base = Bundle.open(given.encoder)

    def run(seed: int, settings: dict[str, Any], into: Path) -> tuple[np.ndarray, dict[str, Any]]:
        data = critics(seed)
        test = {e.text for e in (*data.test, *data.validation)}
        rows = [str(row["text"]) for row in read_rows(DATA / "text/sentiment.jsonl")]
        texts = [text for text in rows if text not in test]
        options = PretrainingOptions(
            epochs=given.epochs, batch_size=64, max_length=64, learning_rate=5e-4, packing=False, seed=seed, **settings
        )
        mine = pretrain(base, texts, into=into.with_suffix(".mlm"), options=options, progress=False)
        numbers = mine.card.history[-1].numbers
        found, took = tuned(mine, data, into, seed=seed, epochs=2, max_length=64, learning_rate=1e-4)
        return found, {"loss": numbers["validation"]["loss"], "seconds": took}

    return run


def _table(right: dict[str, list[np.ndarray]], beside: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds, and differences from the first row: each seed's, and their mean with its standard error."""
    first = next(iter(right.values()))
    rows = {}
    for name, found in right.items():
        gains = [float(mine.mean() - other.mean()) for mine, other in zip(found, first, strict=False)]
        rows[name] = {
            "accuracy": [float(one.mean()) for one in found],
            "mean": mean(float(one.mean()) for one in found) if found else None,
            "gains": gains,
            "gain": mean(gains) if gains else None,
            "standard_error": float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else None,
            "beside": beside[name],
        }
    return {"machine": describe(), "rows": rows}


if __name__ == "__main__":
    main()
