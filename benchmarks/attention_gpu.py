"""Sparse attention on a GPU: louver's `flex` against FlexAttention by hand, SDPA's flash kernel and flash-attn.

python benchmarks/attention_gpu.py [--json FILE]

bfloat16, 12 heads of 64, forward and forward + backward, window(128) | global(1) at 16,384 to 65,536 tokens. Contenders
take turns in one process; medians of CUDA events. Memory is what a call adds to the allocator's peak.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from louver.attention import attend
from louver.measure.machine import describe

PATTERN, WINDOW = "window(128) | global(1)", 128
LENGTHS = (16_384, 32_768, 65_536)
HEADS, HEAD_DIM, ROUNDS = 12, 64, 9


def by_hand(length: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return what one would write without louver: the rule as a mask function, its block mask evaluated by torch."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() <= WINDOW) | (q < 1) | (k < 1)

    mask = create_block_mask(rule, None, None, length, length, device="cuda")
    compiled: Any = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def contenders(length: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return the calls by name."""

    def flash_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v)

    found: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "sdpa flash, all pairs": flash_sdpa,
        "flex by hand": by_hand(length),
        "louver flex": lambda q, k, v: attend(q, k, v, PATTERN, impl="flex"),
        "louver gathered (no flash-style kernel)": lambda q, k, v: attend(q, k, v, PATTERN, impl="gathered"),
    }
    if find_spec("flash_attn"):
        found["louver flash, window alone"] = lambda q, k, v: attend(q, k, v, f"window({WINDOW})", impl="flash")
    return found


def timed(call: Callable[[], object]) -> float:
    """Return milliseconds between two events."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    rows = []
    for length in LENGTHS:
        shape = (1, HEADS, length, HEAD_DIM)
        q, k, v, g = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        calls = contenders(length)
        for backward in (False, True):
            inputs = [x.clone().requires_grad_(backward) for x in (q, k, v)]

            def run(
                call: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor] = inputs, gradient: Tensor = g
            ) -> None:
                out = call(*inputs)
                if out.requires_grad:
                    torch.autograd.grad(out, inputs, gradient)

            times: dict[str, list[float]] = {name: [] for name in calls}
            peaks: dict[str, int] = {}
            for turn in range(ROUNDS + 2):  # two warm up, compilation included
                for name, call in calls.items():
                    held = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                    took = timed(lambda call=call: run(call))
                    peaks[name] = torch.cuda.max_memory_allocated() - held
                    if turn > 1:
                        times[name].append(took)
            for name, found in times.items():
                row = {
                    "length": length,
                    "direction": "forward + backward" if backward else "forward",
                    "contender": name,
                    "ms": round(median(found), 3),
                    "mb": round(peaks[name] / 1e6, 1),
                    "speedup_vs_sdpa_flash": round(median(times["sdpa flash, all pairs"]) / median(found), 2),
                }
                rows.append(row)
                print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "pattern": PATTERN, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
