"""Patterns on a real task: accuracy, distance to exact attention, speed. python benchmarks/patterns.py [--json FILE].

MiniLM-L3, not trained any further, reads the first 1,024, 2,048 or 4,096 tokens of documents whose label is the set of
topics in all 4,000, one pattern at a time. A linear probe on the mean of its states is cross-validated: the share of
topics (five a document) that it gets right, and the paired difference to full attention at the same length. `cosine` is
between a document's vector under the pattern and under full attention.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler

import louver
from louver.encoders.pooling import Reader
from louver.measure.intervals import difference, score
from louver.measure.machine import describe
from louver.text.rows import read_rows

MODEL, TEXTS = Path("data/models/minilm-l3"), Path("data/text/bbc-composite.jsonl")
PATTERNS = (
    "full",
    "window(128) | global(1)",
    "window(32) | global(1)",
    "blocks(32) | global(1)",
    "blocks(64) | global(1)",
    "blocks(64, neighbours=3) | global(1)",
    "strided(64) | global(1)",
    "bigbird(64)",
    "topk(512)",
    "lsh(32)",
    "nystrom(64)",
)


def right(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of all topic decisions that are right."""
    return float((truth == predicted).mean())


@torch.inference_mode()
def vectors(pattern: str, documents: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return each document's vector, and the median milliseconds of a document."""
    model, _ = louver.load(MODEL, pattern=pattern, max_length=4096)
    reader = Reader(model, "mean")
    found, times = [], []
    for ids in documents:
        ids_BT = torch.from_numpy(ids)[None]
        began = time.perf_counter()
        found.append(reader(ids_BT, torch.ones_like(ids_BT))[0].numpy())
        times.append(1000 * (time.perf_counter() - began))
    return np.stack(found), median(times)


def probed(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return cross-validated answers of a linear probe."""
    probe = make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(C=0.1, max_iter=1000)))
    answers: np.ndarray = cross_val_predict(probe, x, truth, cv=5)
    return answers


def main() -> None:
    """Measure every pattern at every length and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = list(islice(read_rows(TEXTS), options.documents))
    truth = MultiLabelBinarizer().fit_transform([row["labels"] for row in rows])
    _, tokenizer = louver.load(MODEL, max_length=4096)
    whole = [np.asarray(tokenizer(row["text"], truncation=True, max_length=4096)["input_ids"]) for row in rows]
    found = []
    for length in map(int, options.lengths.split(",")):
        documents = [np.append(ids[: length - 1], tokenizer.sep_token_id) for ids in whole]
        exact, exact_answers, exact_ms = np.empty(0), np.empty(0), 0.0
        for pattern in PATTERNS:
            x, ms = vectors(pattern, documents)
            answers = probed(x, truth)
            if pattern == "full":
                exact, exact_answers, exact_ms = x, answers, ms
            cosine = (x * exact).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(exact, axis=1))
            found.append(
                {
                    "length": length,
                    "pattern": pattern,
                    "right": score(right, truth, answers).to_json(),
                    "against_full": difference(right, truth, exact_answers, answers).to_json(),
                    "cosine": round(float(cosine.mean()), 4),
                    "ms": round(ms, 1),
                    "speedup": round(exact_ms / ms, 2),
                }
            )
            print(found[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
