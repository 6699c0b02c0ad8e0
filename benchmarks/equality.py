"""How equal answers are that should be: transformers and louver, torch and ONNX, alone and in a batch.

PYTHONPATH=. python benchmarks/equality.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tests.encoders.test_plug import CONFIGS, batch, build, measure

import louver
from louver.bundle import Bundle
from louver.encoders.plug import plug
from louver.export import export
from louver.measure.machine import describe
from louver.text.rows import read_rows

MODEL, TEXTS = Path("data/models/minilm-l3"), Path("data/text/bbc-composite.jsonl")


@torch.no_grad()
def families() -> tuple[float, float]:
    """Return the largest gap of `full` over all families and sides, and the smallest of a window (negative control)."""
    same, other = [], []
    for family in CONFIGS:
        for side in ("right", "left"):
            model = build(family)
            ids, mask = batch(family, side)
            expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
            for pattern, gaps in (("full", same), ("window(4)", other)):
                found = plug(model, pattern)(input_ids=ids, attention_mask=mask).last_hidden_state
                gaps.append(measure(found, expected, mask))
    return max(same), min(other)


def alone_and_batched(bundle: Bundle) -> float:
    """Return the smallest cosine between embeddings computed alone and with others of all lengths."""
    long = next(iter(read_rows(TEXTS)))["text"]
    texts = [long[:n] for n in (10, 200, 2_000, 2_500, 12_000, 40_000)]
    with louver.Predictor(bundle, truncation="head") as predictor:
        together = predictor.logits(texts)
        alone = np.concatenate([predictor.logits([text]) for text in texts])
    return float((together * alone).sum(1).min())


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    same, other = families()
    figures: dict[str, object] = {"full against transformers, at most": same, "window(4) instead, at least": other}
    with tempfile.TemporaryDirectory() as scratch:
        long = louver.extend(MODEL, into=Path(scratch) / "long", max_length=4096)
        graphs = export(long, into=Path(scratch) / "onnx")
        figures["extend"] = long.card.history[-1].numbers
        figures["export"] = graphs.card.history[-1].numbers
        figures["cosine alone and batched, torch"] = alone_and_batched(long)
        figures["cosine alone and batched, onnx"] = alone_and_batched(graphs)
        without = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import louver
print(len(louver.Predictor({str(graphs.path)!r}).predict(["one text"])[0].embedding))"""
        figures["numbers of an embedding, predicted without torch"] = int(fresh(without))
    light = """
import sys, time
began = time.perf_counter()
import louver
print(time.perf_counter() - began, "torch" in sys.modules)"""
    times = [fresh(light).split() for _ in range(5)]
    figures["seconds of import louver"] = median(float(seconds) for seconds, _ in times)
    figures["torch imported with it"] = any(flag == "True" for _, flag in times)
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), **figures}, indent=1))


if __name__ == "__main__":
    main()
