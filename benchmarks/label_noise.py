"""How often label noise is found where there is some, and where there is none: models from cautious to far too sure.

    python benchmarks/label_noise.py --json noise.json

A network on TF-IDF, trained for few passes or for many, answers texts that it never saw; a share of all labels is
replaced before. Critics' lines (two classes, hard) and BBC articles (five classes, easy), 12 draws each.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import LabelEncoder

from louver.measure.machine import describe
from louver.tasks import Classification, Example
from louver.text.rows import read_rows
from louver.training.doctor import doubtful_labels

DATA = Path("data/text")
SETS = {"sentiment": (2000, 600), "bbc": (1000, 400)}
"""Texts to learn from, and to look at."""
PASSES = (8, 40)
NOISE = (0.0, 0.05, 0.1, 0.2, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    found = []
    for name, (count, looked) in SETS.items():
        rows = list(read_rows(DATA / f"{name}.jsonl"))
        truth = LabelEncoder().fit_transform([str(row["label"]) for row in rows])
        words = TfidfVectorizer(min_df=3, max_features=5000).fit_transform([str(row["text"])[:600] for row in rows])
        labels = tuple(map(str, range(truth.max() + 1)))
        for passes in PASSES:
            for noise in NOISE:
                alarms, right = 0, list[float]()
                for draw in range(given.draws):
                    rng = np.random.default_rng(draw)
                    chosen = rng.permutation(len(truth))[: count + looked]
                    wrong = rng.random(len(truth)) < noise
                    seen = np.where(wrong, (truth + rng.integers(1, len(labels), len(truth))) % len(labels), truth)
                    learned, rest = chosen[:count], chosen[count:]
                    model = MLPClassifier((32,), max_iter=passes, alpha=0.0, random_state=draw)
                    model.fit(words[learned], seen[learned])
                    logits = np.log(np.clip(model.predict_proba(words[rest]), 1e-16, 1))
                    right.append(float((logits.argmax(1) == seen[rest]).mean()))
                    examples = [Example("text", labels[i]) for i in seen[rest]]
                    alarms += bool(doubtful_labels(Classification("single", labels), examples, logits)[1])
                row = {"texts": name, "passes": passes, "noise": noise, "accuracy": round(float(np.mean(right)), 3)}
                found.append({**row, "alarms": alarms, "draws": given.draws})
                print(json.dumps(found[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
