"""Loss by position before and after extension, on real text: python benchmarks/positions.py [--json FILE].

MiniLM-L3 as it is. A probe learns to tell an article's topic from the mean of 64 tokens' states, on articles cut to 512
tokens as the checkpoint reads them. Other articles are joined to texts of 4,096 tokens, and the probe's cross entropy
(in nats) is kept by where a stretch stands: read in windows of 512 (before extension), and whole, by every way to
extend a position table. Nothing is trained for the long texts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import louver
from louver.encoders import positions
from louver.encoders.plug import plug
from louver.measure.machine import describe
from louver.text.rows import read_rows

MODEL, ARTICLES = Path("data/models/minilm-l3"), Path("data/text/bbc.jsonl")
WINDOW = "window(128) | global(1)"
STRETCH, BUCKET, LONG, SHORT = 64, 512, 4096, 512
WAYS: tuple[tuple[str, str | None, str], ...] = (
    ("before: windows of 512", None, "full"),
    ("tile", "tile", WINDOW),
    ("tile", "tile", "full"),
    ("interpolate", "interpolate", WINDOW),
    ("sinusoidal", "sinusoidal", WINDOW),
)


def reader(how: str | None, pattern: str) -> Any:
    """Return the checkpoint, its positions extended in one way, under one pattern."""
    model, _ = louver.load(MODEL)
    if how is not None:
        positions.extend(model, LONG, how)
    return plug(model, pattern)


@torch.inference_mode()
def states(model: Any, ids: np.ndarray, window: int | None = None) -> np.ndarray:
    """Return the mean state of every whole stretch of a text, (stretches, width)."""
    pieces = torch.from_numpy(ids).split(window or len(ids))
    found = torch.cat([model(input_ids=piece[None]).last_hidden_state[0] for piece in pieces])
    whole = len(found) // STRETCH
    mean: np.ndarray = found[: whole * STRETCH].unflatten(0, (whole, STRETCH)).mean(1).numpy()
    return mean


def joined(articles: list[tuple[np.ndarray, str]]) -> Iterator[tuple[np.ndarray, list[str | None]]]:
    """Join articles to texts of `LONG` tokens; yield them with the topic of each stretch, None where two meet."""
    ids = np.concatenate([tokens for tokens, _ in articles])
    topics = np.concatenate([np.full(len(tokens), topic, object) for tokens, topic in articles])
    for start in range(0, len(ids) - LONG, LONG):
        own = topics[start : start + LONG].reshape(-1, STRETCH)
        yield ids[start : start + LONG], [row[0] if len(set(row)) == 1 else None for row in own]


def main() -> None:
    """Fit the probe, then print the loss of each way by position."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    rows = list(read_rows(ARTICLES))
    order = np.random.default_rng(0).permutation(len(rows))
    encoded = [
        (np.asarray(tokenizer(rows[i]["text"], truncation=True, max_length=SHORT)["input_ids"]), rows[i]["label"])
        for i in order
    ]
    learning, asked = encoded[:1200], encoded[1200:]
    plain = reader(None, "full")
    known = [(x, topic) for ids, topic in learning for x in states(plain, ids)]
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    probe.fit(np.stack([x for x, _ in known]), [topic for _, topic in known])
    texts = list(joined(asked))
    places = np.asarray(
        [(n, i * STRETCH // BUCKET) for n, (_, t) in enumerate(texts) for i, one in enumerate(t) if one]
    )
    classes = list(probe.classes_)
    found = []
    for name, how, pattern in WAYS:
        model = reader(how, pattern)
        losses = []
        for ids, topics in texts:
            chances = probe.predict_log_proba(states(model, ids, SHORT if how is None else None))
            losses += [-chances[i, classes.index(topic)] for i, topic in enumerate(topics) if topic]
        stretches = by_bucket(np.asarray(losses), places)
        found.append({"positions": name, "pattern": pattern, "stretches": stretches})
        print(name, pattern, [f"{s['start']}: {s['loss']:.3f}" for s in stretches], flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": describe(), "texts": len(texts), "rows": found}, indent=1) + "\n"
        )


def by_bucket(losses: np.ndarray, places: np.ndarray) -> list[dict[str, float]]:
    """Average losses by bucket, with the 95 % interval over resampled texts."""
    texts, buckets = places[:, 0].max() + 1, places[:, 1].max() + 1
    sums, counts = np.zeros((texts, buckets)), np.zeros((texts, buckets))
    np.add.at(sums, (places[:, 0], places[:, 1]), losses)
    np.add.at(counts, (places[:, 0], places[:, 1]), 1)
    again = np.random.default_rng(0).integers(0, texts, (1000, texts))
    low, high = np.percentile(sums[again].sum(1) / counts[again].sum(1), [2.5, 97.5], axis=0)
    mean = sums.sum(0) / counts.sum(0)
    return [
        {"start": int(b * BUCKET), "loss": float(mean[b]), "low": float(low[b]), "high": float(high[b])}
        for b in range(buckets)
    ]


if __name__ == "__main__":
    main()
