"""What a call costs on this machine: the numbers by which `auto` chooses, measured once by `louver patterns calibrate`.

Times are those of all cores together, in nanoseconds. A pair's cost grows with the head dim: a part is the softmax, the
rest the two products.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

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
        piece: nanoseconds that each call of the kernel in `gathered` costs beside its pairs.
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


DEFAULT = Rates(dense=(0.85, 1.45), gathered=(1.0, 1.8), piece=20_000.0)
"""Measured on two cores with AVX-512; processors differ more in speed than in what these are to each other."""


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

    dense: list[float] = []
    gathered: list[float] = []
    heads, long, short = 12, 2048, 256
    piece = DEFAULT.piece
    for head_dim in (32, 64):
        pattern = Window(128)

        def call(tokens: int, impl: str, width: int = head_dim, pattern: Window = pattern) -> Callable[[], object]:
            q_BHTD = torch.randn(1, tokens, heads, width).transpose(1, 2)
            return lambda: attend(q_BHTD, q_BHTD, q_BHTD, pattern, impl=impl)

        slow, fast, small = _medians([call(long, "dense"), call(long, "gathered"), call(short, "gathered")], rounds)
        whole = cut(pattern, long, torch.float32, torch.device("cpu"))
        part = cut(pattern, short, torch.float32, torch.device("cpu"))
        dense.append(slow / (heads * long**2))
        # two lengths, two unknowns: a pair's cost and a piece's
        more_pairs, more_pieces = heads * (whole.pairs - part.pairs), len(whole.pieces) - len(part.pieces)
        pair = max((fast - small - piece * more_pieces) / more_pairs, dense[-1] / 4)
        gathered.append(pair)
        piece = max(1_000.0, (small - pair * heads * part.pairs) / len(part.pieces))
    found = Rates((dense[0], dense[1]), (gathered[0], gathered[1]), piece)
    write_text(cache_file(), json.dumps(asdict(found), indent=1))
    rates.cache_clear()
    return found


@torch.inference_mode()
def _medians(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return median nanoseconds of calls that take turns."""
    times: list[list[int]] = [[] for _ in calls]
    for turn in range(rounds + 2):
        for index, call in enumerate(calls):
            began = time.perf_counter_ns()
            call()
            if turn > 1:
                times[index].append(time.perf_counter_ns() - began)
    return [float(median(found)) for found in times]
