"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from louver.runtime.engine import usable_cores
from louver.versions import processor

_ISA = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16")


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets that louver cares about, as the kernel names them (Linux; elsewhere empty)."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return frozenset()
    words = {
        word
        for line in info.read_text("utf8").splitlines()
        if line.startswith(("flags", "Features"))
        for word in line.split(":", 1)[1].split()
    }
    return frozenset(words & set(_ISA))


def has_fast_bf16() -> bool:
    """Say whether bfloat16 products are faster than float32's: on GPUs that have them, and on CPUs with AMX.

    AVX-512 has them too, and there they lost: 75 GFLOP/s a core against 130 to 160 (oneDNN 3.12, Intel Xeon).
    """
    import torch

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return "amx_bf16" in cpu_flags()


def gemm_peak(size: int = 1024, repeats: int = 8) -> float:
    """Measure the best float32 matrix product of this process in GFLOP/s, on all cores."""
    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    best = float("inf")
    a @ a
    for _ in range(repeats):
        began = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def describe() -> dict[str, Any]:
    """Return the machine as JSON-ready values: processor, cores, instruction sets, memory, GPU, measured GEMM peak."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "isa": sorted(cpu_flags()),
        "memory_gb": _memory_gb(),
        "gpu": _gpu(),
        "system": platform.system(),
        "python": platform.python_version(),
        "gemm_gflops": round(gemm_peak(), 1),
    }


def _memory_gb() -> float | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _gpu() -> str | None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
