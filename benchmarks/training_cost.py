"""What checkpointing, bf16 and accumulation cost and save in training, alone and together; and memory by length.

    python benchmarks/training_cost.py --length 512 --batch 16 --json cost.json
    python benchmarks/training_cost.py --by-length --batch 8

Every row is a fresh process that trains MiniLM-L6 on random tokens along louver's own path, eight texts a step or
more; the peak is of its resident memory, above what it held before the first step. Rows take turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

STEPS = 6
MODEL = "data/models/minilm-l6"
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "checkpointing": {"gradient_checkpointing": True},
    "accumulation of 4": {"accumulation": 4},
    "bf16, checkpointing": {"precision": "bf16", "gradient_checkpointing": True},
    "bf16, accumulation of 4": {"precision": "bf16", "accumulation": 4},
    "checkpointing, accumulation of 4": {"gradient_checkpointing": True, "accumulation": 4},
    "all three": {"precision": "bf16", "gradient_checkpointing": True, "accumulation": 4},
}
LENGTHS = (480, 496, 504, 512, 520, 528)


def peak() -> float:
    """Return the most resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(length: int, batch: int, eager: bool, settings: dict[str, Any]) -> dict[str, float]:
    """Train a few steps in this process."""
    import torch

    import louver
    from louver.encoders.pooling import Reader, encoder_of
    from louver.training.fit import fit
    from louver.training.judgement import Judgement
    from louver.training.options import TrainingOptions

    pieces = settings.get("accumulation", 1)
    rng = np.random.default_rng(0)
    rows = [{"input_ids": rng.integers(1000, 30000, length), "labels": np.int64(i % 2)} for i in range(batch * STEPS)]
    with tempfile.TemporaryDirectory() as scratch:
        bundle = louver.extend(MODEL, into=Path(scratch) / "b", max_length=max(512, length), pattern="full")
        reader = Reader(encoder_of(bundle), "mean", 2)
    if eager:
        reader.encoder.set_attn_implementation("eager")
    reader.train()
    began: list[float] = []
    before = 0.0

    def objective(pupil: Any, given: Any) -> Any:
        nonlocal before
        before = before or peak()
        began.append(time.perf_counter())
        logits = pupil(given["input_ids"], given["attention_mask"])
        return torch.nn.functional.cross_entropy(logits.float(), given["labels"]), logits

    options = TrainingOptions(epochs=1, batch_size=batch // pieces, **{"precision": "float32", **settings})
    fit(reader, objective, rows, lambda _: Judgement(0.0, np.zeros(1)), options, progress=False)
    steps = np.diff([*began[::pieces], time.perf_counter()])
    return {"ms": 1000 * median(steps[1:]), "peak_mb": peak() - before, "before_mb": before}


def fresh(**asked: Any) -> dict[str, float]:
    """Train in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(asked)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--by-length", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(train(**json.loads(given.one))))
        return
    asked: dict[str, dict[str, Any]] = {
        name: {"length": given.length, "batch": given.batch, "eager": False, "settings": settings}
        for name, settings in VARIANTS.items()
    }
    if given.by_length:
        asked = {
            f"{kind} {length}": {"length": length, "batch": given.batch, "eager": kind == "eager", "settings": {}}
            for length in LENGTHS
            for kind in ("eager", "louver")
        }
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in asked}
    for _ in range(given.rounds):
        for name, one in asked.items():
            rows[name].append(fresh(**one))
            print(name, json.dumps(rows[name][-1]), flush=True)
    found = {name: {key: median(row[key] for row in kept) for key in kept[0]} for name, kept in rows.items()}
    print(json.dumps(found, indent=1))
    if given.json:
        from louver.measure.machine import describe

        given.json.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1), "utf8")


if __name__ == "__main__":
    main()
