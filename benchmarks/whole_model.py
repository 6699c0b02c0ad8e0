"""A whole encoder with and without louver: python benchmarks/whole_model.py [--json FILE].

MiniLM-L6 (6 layers, 384 wide) with its positions tiled, one text in float32: transformers with SDPA, transformers with
eager attention, and louver with a window and a global token. They take turns; `ms` are medians. `ceiling` is what the
operations allow over SDPA if attention cost nothing: 1 + tokens / (6 · width).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

import louver
from louver.encoders import positions
from louver.measure.machine import describe

MODEL = Path("data/models/minilm-l6")
PATTERN = "window(128) | global(1)"
LENGTHS = (512, 1024, 2048, 4096, 8192)
EAGER_UP_TO = 4096


def contender(name: str) -> Any:
    """Return a model that reads 8,192 tokens."""
    if name == "louver":
        return louver.load(MODEL, pattern=PATTERN, max_length=max(LENGTHS))[0]
    model = transformers.AutoModel.from_pretrained(MODEL, attn_implementation=name, dtype=torch.float32).eval()
    positions.extend(model, max(LENGTHS))
    return model


@torch.inference_mode()
def main() -> None:
    """Race the three at every length and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    models = {name: contender(name) for name in ("sdpa", "eager", "louver")}
    rows = []
    for tokens in LENGTHS:
        ids = torch.randint(1000, 30_000, (1, tokens))
        times: dict[str, list[float]] = {n: [] for n in models if n != "eager" or tokens <= EAGER_UP_TO}
        for turn in range(options.rounds + 1):
            for name, found in times.items():
                began = time.perf_counter()
                models[name](input_ids=ids, attention_mask=torch.ones_like(ids))
                if turn:
                    found.append(1000 * (time.perf_counter() - began))
        ms = {name: round(median(found), 1) for name, found in times.items()}
        rows.append(
            {
                "length": tokens,
                "ms": ms,
                "over_sdpa": round(ms["sdpa"] / ms["louver"], 2),
                "over_eager": round(ms["eager"] / ms["louver"], 2) if "eager" in ms else None,
                "ceiling": round(1 + tokens / (6 * models["sdpa"].config.hidden_size), 2),
            }
        )
        print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "pattern": PATTERN, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
