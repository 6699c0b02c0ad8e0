"""Training in several processes: who writes, who waits, and what is counted over all of them.

`louver finetune --processes 2` starts the same command in so many processes (torchrun's own launcher); each one reads
the rows, takes its share of every batch, and the first one writes. On GPUs that is one process a device.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from louver.errors import OptionError, TrainingError


def rank() -> int:
    """Return the number of this process, 0 if it is alone."""
    return int(os.environ.get("RANK", 0))


def count() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_first() -> bool:
    """Say whether this process writes."""
    return rank() == 0


def wait() -> None:
    """Wait until all processes have come here."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def as_the_first(answer: bool) -> bool:
    """Return the first process's answer: clocks differ, and all must do the same."""
    if not (dist.is_available() and dist.is_initialized()):
        return answer
    told = torch.tensor(float(answer), device="cuda" if torch.cuda.is_available() else "cpu")
    dist.broadcast(told, 0)
    return bool(told)


def mean_over_all(total: Tensor, parts: int) -> Tensor:
    """Return a loss whose average over the processes is the mean over all their parts.

    Args:
        total: sum of this process's losses.
        parts: how many they are; each process may have another number.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return total / max(parts, 1)
    everybody = torch.tensor(float(parts), device=total.device)
    dist.all_reduce(everybody)
    return total * count() / everybody.clamp(min=1)


def spread(processes: int) -> bool:
    """Start this command again in several processes, unless this is one of them.

    Args:
        processes: how many; 1 for this one alone.

    Returns:
        Whether they were started, and have ended: there is nothing left to do here.

    Raises:
        OptionError: if the number is not positive.
        TrainingError: if one of them failed; each has told what was wrong.
    """
    if processes < 1:
        raise OptionError(f"processes must be positive, got {processes}; leave it out for one")
    if processes == 1 or "RANK" in os.environ:
        return False
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        run_id=uuid.uuid4().hex,
    )
    command: list[Any] = ["-m", "louver", *sys.argv[1:]]
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        first = next(iter(error.failures), -1)
        raise TrainingError(f"process {first} of {processes} failed; what it said stands above") from None
    return True
