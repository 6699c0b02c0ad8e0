"""What a call costs on this machine: the numbers by which `auto` chooses, measured once by `louver patterns calibrate`.

Times are those of all cores together, in nanoseconds. A pair's cost grows with the head dim: a part is the softmax, the
rest the two products.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from louver.patterns import Window
from louver.storage import write_text
from louver.versions import processor


@dataclass(frozen=True)
class Rates:
    """Nanoseconds of a kernel, a pair of tokens and head.

    Attributes:
        dense: by head dim 32 and 64, for SDPA with a mask of all pairs.
        gathered: the same for pairs that `gathered` computes, what it computes in vain included.
        piece: nanoseconds that each call of the kernel in `gathered` costs beside its pairs, copies and joins included.
    """

    dense: tuple[float, float]
    gathered: tuple[float, float]
    piece: float

    def dense_pair(self, head_dim: int) -> float:
        """Return the cost of a dense pair, in a straight line through both head dims."""
        return _between(self.dense, head_dim)

    def gathered_pair(self, head_dim: int) -> float:
        """Return the cost of a gathered pair."""
        return _between(self.gathered, head_dim)


DEFAULT = Rates(dense=(0.93, 1.48), gathered=(0.83, 1.51), piece=322_000.0)
"""What `calibrate` found on two cores with AVX-512, the median of three; processors differ more in speed than in what
these are to each other."""


def _between(rates: tuple[float, float], head_dim: int) -> float:
    slope = (rates[1] - rates[0]) / 32
    return max(rates[0] + slope * (head_dim - 32), rates[0] / 4)


def cache_file() -> Path:
    """Return where the rates of this machine are kept: one file for each processor, thread count and torch."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = os.environ.get("LOUVER_CACHE") or caches / "louver"
    name = f"{platform.machine()}-{processor()}-{torch.get_num_threads()}-torch-{torch.__version__}"
    return Path(root) / f"attention-{''.join(c if c.isalnum() or c in '.-' else '_' for c in name)}.json"


@lru_cache(maxsize=1)
def rates() -> Rates:
    """Return this machine's rates, or the default ones where it was not calibrated."""
    try:
        found = json.loads(cache_file().read_text("utf8"))
        return Rates(tuple(found["dense"]), tuple(found["gathered"]), float(found["piece"]))
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT


def calibrate(rounds: int = 7) -> Rates:
    """Measure the rates on this machine's processor, keep them, and use them from now on; takes seconds.

    Args:
        rounds: turns of each measurement; medians count.

    Raises:
        StorageError: if they cannot be kept.
    """
    from louver.attention.attend import attend  # `attend` chooses by this module
    from louver.attention.cuts import cut

    heads, tokens = 12, 2048
    dense, gathered, pieces = [], [], []
    # the same kernel over many pairs and over few: two unknowns, a pair's cost and a call's
    wide, narrow = Window(128), Window(2)
    cuts = [cut(pattern, tokens, torch.float32, torch.device("cpu")) for pattern in (wide, narrow)]
    counts = np.array([[heads * one.pairs, len(one.pieces)] for one in cuts], float)
    for head_dim in (32, 64):
        x_BHTD = torch.randn(1, tokens, heads, head_dim).transpose(1, 2)
        calls = [
            partial(attend, x_BHTD, x_BHTD, x_BHTD, pattern, impl=impl)
            for pattern, impl in ((wide, "dense"), (wide, "gathered"), (narrow, "gathered"))
        ]
        every_pair, *times = _medians(calls, rounds)
        dense.append(every_pair / (heads * tokens**2))
        pair, piece = np.linalg.solve(counts, np.array(times))
        gathered.append(max(float(pair), dense[-1] / 4))  # a noisy minute must not make pairs free
        pieces.append(max(float(piece), 1_000.0))
    found = Rates((dense[0], dense[1]), (gathered[0], gathered[1]), max(pieces))
    write_text(cache_file(), json.dumps(asdict(found), indent=1))
    rates.cache_clear()
    return found


@torch.inference_mode()
def _medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return median nanoseconds of calls that take turns."""
    times: list[list[int]] = [[] for _ in calls]
    for turn in range(rounds + 2):
        for index, call in enumerate(calls):
            began = time.perf_counter_ns()
            call()
            if turn > 1:
                times[index].append(time.perf_counter_ns() - began)
    return [float(median(found)) for found in times]
