"""Sparse attention against dense SDPA on this machine: contenders alternate in one run, medians.

python benchmarks/attention.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from louver.attention import attend
from louver.measure.machine import describe
from louver.patterns import parse

PATTERN = "window(128) | global(1)"
LENGTHS = (1024, 2048, 4096, 8192)
HEADS, HEAD_DIM, ROUNDS = 12, 32, 5


def timed(*, backward: bool, length: int, pattern: str, impl: str) -> float:
    shape = (1, length, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_(backward) for _ in range(3))
    began = time.perf_counter()
    out = attend(q, k, v, pattern, impl=impl)
    if backward:
        out.sum().backward()
    return time.perf_counter() - began


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    rows = []
    for length in LENGTHS:
        for backward in (False, True):
            times: dict[str, list[float]] = {"dense": [], "gathered": []}
            for turn in range(ROUNDS + 1):
                for impl, pattern in (("dense", "full"), ("gathered", PATTERN)):
                    took = timed(backward=backward, length=length, pattern=pattern, impl=impl)
                    if turn:
                        times[impl].append(took)
            ratio = parse(PATTERN).cost(length, HEADS, HEAD_DIM).pair_ratio
            speedup = median(times["dense"]) / median(times["gathered"])
            row = {
                "length": length,
                "direction": "forward + backward" if backward else "forward",
                "dense_ms": round(1000 * median(times["dense"]), 1),
                "gathered_ms": round(1000 * median(times["gathered"]), 1),
                "speedup": round(speedup, 2),
                "pair_ratio": round(ratio, 2),
                "efficiency": round(speedup / ratio, 3),
            }
            rows.append(row)
            print(row)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "pattern": PATTERN, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
