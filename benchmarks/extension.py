"""Positions beyond a checkpoint's own: loss of hidden words by position, tiled, interpolated, then a short pass.

    python benchmarks/extension.py runs/mlm --documents 60 --steps 60 --json extension.json

`runs/mlm` is an encoder with a masked-word head that reads 512 tokens (louver create, extend, pretrain). Texts are
bbc-composite's test documents, glued of articles that the encoder never saw; the short pass reads the training ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import louver
from louver.bundle import Bundle
from louver.encoders.words import masked_model
from louver.measure.machine import describe
from louver.measure.positions import loss_by_position
from louver.text import Tokenizer
from louver.text.rows import read_rows
from louver.training import PretrainingOptions, pretrain

TEXTS = Path("data/text/bbc-composite.jsonl")
LENGTH = 4096
PATTERN = "window(128) | global(1)"


def documents(split: str, count: int) -> list[str]:
    rows = list(read_rows(TEXTS))
    return [row["text"] for row in rows if row["split"] == split][:count]


def measure(bundle: Bundle, texts: list[str], window: int | None = None) -> list[dict[str, Any]]:
    tokenizer = Tokenizer.open(bundle.path)
    vocabulary = tokenizer.vocabulary()
    ids = [tokenizer.wrap(one)[:LENGTH].tolist() for one in tokenizer.encode(texts)]
    found = loss_by_position(
        masked_model(bundle).eval(),
        ids,
        mask_id=vocabulary.mask_id,
        special_ids=vocabulary.special_ids,
        window=window,
    )
    return [asdict(stretch) for stretch in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    texts = documents("test", given.documents)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        tiled = louver.extend(given.bundle, into=home / "tiled", max_length=LENGTH, pattern=PATTERN)
        stretched = louver.extend(
            given.bundle,
            into=home / "stretched",
            max_length=LENGTH,
            pattern=PATTERN,
            positions="interpolate",
            short="same",
        )
        results = {
            "windows of 512": measure(Bundle.open(given.bundle), texts, 512),
            "tiled": measure(tiled, texts),
            "interpolated": measure(stretched, texts),
        }
        passed = {"tiled": tiled, "interpolated": stretched}
        options = PretrainingOptions(epochs=1, batch_size=2, learning_rate=given.learning_rate, validation=0.02)
        for name, bundle in passed.items():
            train = documents("train", 2 * given.steps)
            trained = pretrain(bundle, train, into=home / f"{name}-trained", options=options, progress=False, say=print)
            results[f"{name}, then {given.steps} steps"] = measure(trained, texts)
        # as many steps without longer positions: what the pass itself teaches
        short = options.model_copy(update={"batch_size": 16})
        trained = pretrain(given.bundle, train, into=home / "short-trained", options=short, progress=False, say=print)
        results[f"windows of 512, then {given.steps} steps"] = measure(trained, texts, 512)
    for name, stretches in results.items():
        print(name, " ".join(f"{s['loss']:.3f}" for s in stretches), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), "results": results}, indent=1), "utf8")


if __name__ == "__main__":
    main()
