"""What this machine multiplies at most, in float32 and on all its cores: the measure of every contender.

    python benchmarks/peers/sgemm.py      # prints GFLOP/s for every line it is sent

The better of two libraries' kernels, at a size where both are at their best.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

SIZE = 1536


def best(multiply, seconds: float = 1.0) -> float:
    """Return GFLOP/s of the fastest call within some time."""
    multiply()
    found, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        multiply()
        found = min(found, time.perf_counter() - began)
    return 2 * SIZE**3 / found / 1e9


def main() -> None:
    a = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    t, out = torch.from_numpy(a), torch.empty(SIZE, SIZE)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(max(best(lambda: a @ a), best(lambda: torch.mm(t, t, out=out))), flush=True)


if __name__ == "__main__":
    main()
