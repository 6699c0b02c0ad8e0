"""Speed and memory of contenders, side by side.

Contenders take turns in one process, so that a slow minute of the machine hits all of them; memory is the peak of a
fresh process each.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

from louver.measure.evaluate import Answers

LENGTHS = (512, 2048, 4096)


@dataclass(frozen=True)
class Speed:
    """What one contender reached.

    Attributes:
        documents_per_s: over a set of texts given at once; median of the rounds.
        p50_ms: median time of one text of about so many tokens, alone; None where it was not timed.
    """

    documents_per_s: float
    p50_ms: dict[int, float | None]


def race(
    contenders: Mapping[str, Answers],
    texts: Sequence[str],
    by_length: Mapping[int, str],
    *,
    rounds: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Speed]:
    """Time contenders in turn on the same texts.

    Args:
        contenders: by name.
        texts: given at once, for throughput.
        by_length: one text of about so many tokens each, given alone, for latency.
        rounds: turns that count; one more warms up the latencies.
        say: told what is being timed.
    """
    batch: dict[str, list[float]] = {name: [] for name in contenders}
    alone: dict[tuple[str, int], list[float]] = {}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            for length, text in by_length.items():
                took = _timed(contender, [text])
                if turn:
                    alone.setdefault((name, length), []).append(took)
            if turn:
                say(f"round {turn} of {rounds}: {name}")
                batch[name].append(_timed(contender, texts))
    return {
        name: Speed(
            len(texts) / median(batch[name]),
            {n: round(1000 * median(alone[name, n]), 1) if (name, n) in alone else None for n in LENGTHS},
        )
        for name in contenders
    }


def _timed(contender: Answers, texts: Sequence[str]) -> float:
    began = time.perf_counter()
    contender.logits(texts)
    return time.perf_counter() - began


def text_of_length(texts: Sequence[str], tokens: int, count: Callable[[str], int]) -> str:
    """Join texts, again from the first if they are too short, and cut at the most characters that fit.

    Characters and not words, because not every language puts spaces between words.

    Args:
        texts: real ones.
        tokens: wanted, specials included.
        count: tokens of a text, specials included.
    """
    joined = ""
    for text in cycle(texts):
        joined += f" {text}" if joined else text
        if count(joined) >= tokens:
            break
    low, high = 1, len(joined)
    while low < high:
        middle = (low + high + 1) // 2
        if count(joined[:middle]) <= tokens:
            low = middle
        else:
            high = middle - 1
    return joined[:low]


def peaks_of_memory(work: Callable[..., Iterator[object]], *arguments: object) -> list[float | None]:
    """Run a function in a fresh process and return the peak of its resident memory in MB after each of its steps.

    Args:
        work: a module-level generator; each ``yield`` ends a step.
        arguments: picklable.

    Returns:
        Rising peaks, one a step; None where the system does not tell (Windows). Steps that a killed process did not
        come to are missing.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, work, arguments))
    process.start()
    sender.close()
    found: list[float | None] = []
    with contextlib.suppress(EOFError):  # the end, or killed: most often for the memory that it wanted
        while True:
            found.append(receiver.recv())
    process.join()
    return found


def _measured(
    sender: multiprocessing.connection.Connection, work: Callable[..., Iterator[object]], arguments: tuple[object, ...]
) -> None:
    for _ in work(*arguments):
        sender.send(_peak_mb())
    sender.close()


def _peak_mb() -> float | None:
    """Return this process's peak; Linux carries the parent's over in ``getrusage``, so its own status is read there."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text("utf8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
