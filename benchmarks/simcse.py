"""SimCSE on sentences, or pairs of passages, judged by people's similarities of texts that it never saw (sts-lee).

    python benchmarks/simcse.py BUNDLE --seeds 0,1,2 --json simcse.json
    python benchmarks/simcse.py BUNDLE --pairs --learning-rate 1e-3      # neighbouring passages as pairs

Sentences are of BBC articles; the interval is over sts-lee's 50 texts, and the gain is paired.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import louver
from louver.measure.machine import describe
from louver.measure.similarity import cosines, rank_correlation, rank_difference
from louver.tasks.similar import Similar, read_similar
from louver.text.rows import read_rows
from louver.training import ContrastOptions, contrast

DATA = Path("data/text")


def sentences(count: int) -> list[Similar]:
    """Cut articles at full stops; keep what has 8 words or more, once."""
    found: dict[str, None] = {}
    for row in read_rows(DATA / "bbc.jsonl"):
        for sentence in re.split(r"(?<=[.!?])\s+", str(row["text"])):
            if len(sentence.split()) >= 8:
                found.setdefault(sentence)
    return [Similar((sentence,)) for sentence in list(found)[:count]]


def neighbours() -> list[Similar]:
    """Return two passages of each article, 64 words each, that share no word in their places."""
    found: dict[Similar, None] = {}
    for file in ("bbc.jsonl", "news-outlet.jsonl"):
        for row in read_rows(DATA / file):
            words = str(row["text"]).split()
            for start in range(0, len(words) - 127, 128):
                found.setdefault(Similar((" ".join(words[start : start + 64]), " ".join(words[start + 64 :][:64]))))
    return list(found)


def embeddings(bundle: Any, texts: Sequence[str]) -> np.ndarray:
    with louver.Predictor(bundle, truncation="head") as predictor:
        return np.stack([p.embedding for p in predictor.predict(list(texts)) if p.embedding is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--pairs", action="store_true", help="neighbouring passages of articles as pairs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = read_similar(DATA / "sts-lee.jsonl", pair="pair", score="label")
    texts = list(dict.fromkeys(text for row in rows for text in row.texts))
    pairs = [(texts.index(row.texts[0]), texts.index(row.texts[1])) for row in rows]
    truth = np.asarray([row.score for row in rows], float)
    before = cosines(embeddings(given.bundle, texts), pairs)
    results: list[dict[str, Any]] = [{"before": rank_correlation(truth, before, pairs).to_json()}]
    print(json.dumps(results[0]), flush=True)
    train = neighbours() if given.pairs else sentences(given.sentences)
    for seed in map(int, given.seeds.split(",")):
        options = ContrastOptions(
            seed=seed, max_length=96 if given.pairs else 64, learning_rate=given.learning_rate, epochs=given.epochs
        )
        with tempfile.TemporaryDirectory() as scratch:
            made = contrast(given.bundle, train, into=Path(scratch) / "b", options=options, progress=False)
            after = cosines(embeddings(made, texts), pairs)
        row = {
            "seed": seed,
            "after": rank_correlation(truth, after, pairs).to_json(),
            "gain": rank_difference(truth, before, after, pairs).to_json(),
            "rows": len(train),
            "seconds": made.card.history[-1].seconds,
        }
        results.append(row)
        print(json.dumps(row), flush=True)
        if given.json:
            given.json.write_text(json.dumps({"machine": describe(), "rows": results}, indent=1), "utf8")


if __name__ == "__main__":
    main()
