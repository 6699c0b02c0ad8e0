"""Curves for TensorBoard, Weights & Biases and MLflow: the Trainer's own reporters."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from transformers import integrations

from louver.errors import MissingExtraError
from louver.training.options import Schedule
from louver.training.processes import is_first
from louver.training.resume import Places

_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def reporters(options: Schedule, places: Places | None) -> list[Any]:
    """Return the Trainer's callbacks for the reporters that the options name.

    Args:
        options: of the training.
        places: where TensorBoard's files go; without them there are none.

    Raises:
        MissingExtraError: if a reporter was asked for and is not installed.
    """
    usual = ["tensorboard"] if places is not None and _installed("tensorboard") else []
    wanted = usual if options.report is None else list(options.report)
    missing = [name for name in wanted if not _installed(name)]
    if missing:
        raise MissingExtraError(f"{missing[0]} not installed; run: pip install {_PACKAGES[missing[0]]}")
    found: list[Any] = []
    for name in wanted if is_first() else []:
        if name == "wandb":
            found.append(integrations.WandbCallback())
        elif name == "mlflow":
            found.append(integrations.MLflowCallback())
        elif places is not None:
            found.append(integrations.TensorBoardCallback(_writer(places)))
    return found


def _installed(name: str) -> bool:
    return importlib.util.find_spec(_PACKAGES[name]) is not None


def _writer(places: Places) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(places.curves))
