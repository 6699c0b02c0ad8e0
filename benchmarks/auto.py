"""What `auto` adds to torch's own attention on short texts: python benchmarks/auto.py [--pattern P] [--json FILE].

Calls take turns: SDPA with the same boolean mask, `attend` with `auto`, and SDPA without a mask. A batch of one, with
twelve heads, in float32; `us` are medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from louver.attention import Request, attend, choose
from louver.patterns import parse

PATTERN = "window(128) | global(1)"
LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512, 640, 700, 768, 896, 1024)


def race(pattern: str, tokens: int, head_dim: int, rounds: int) -> dict[str, float | str | int]:
    """Return median microseconds of each call at one length."""
    q, k, v = (torch.randn(1, tokens, 12, head_dim).transpose(1, 2) for _ in range(3))
    mask = torch.from_numpy(parse(pattern).mask(tokens).copy())
    calls: dict[str, Callable[[], Tensor]] = {
        "sdpa_same_mask": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "auto": lambda: attend(q, k, v, pattern),
        "sdpa_no_mask": lambda: scaled_dot_product_attention(q, k, v),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 5):
        for name, call in calls.items():
            began = time.perf_counter_ns()
            call()
            if turn >= 5:
                times[name].append((time.perf_counter_ns() - began) / 1000)
    us = {name: median(found) for name, found in times.items()}
    impl = choose(Request(q, k, v, parse(pattern), head_dim**-0.5)).impl
    ratio = us["sdpa_same_mask"] / us["auto"]
    return {
        "pattern": pattern,
        "length": tokens,
        "head_dim": head_dim,
        "impl": impl,
        **{f"{name}_us": round(found, 1) for name, found in us.items()},
        "added_us": round(us["auto"] - us["sdpa_same_mask"], 1),
        "speedup": round(ratio, 3),
    }


def main() -> None:
    """Race all lengths and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pattern", default=PATTERN)
    options = parser.parse_args()
    rows = []
    with torch.inference_mode():
        for head_dim in (32, 64):
            for tokens in LENGTHS:
                rows.append(race(options.pattern, tokens, head_dim, max(50, options.rounds * 256 // max(tokens, 256))))
                print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
