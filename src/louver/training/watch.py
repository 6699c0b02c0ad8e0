"""`Watch`: what a training did, step by step; read by the diagnosis and kept in the bundle's history."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from louver.encoders.plug import layers_of
from louver.storage import write_text
from louver.training.learner import Learner

WATCHED = "louver.json"
"""File of a checkpoint with what a training has seen so far."""
_OFTEN = 50
"""First steps of which every gradient is looked at; later ones of every tenth."""


@dataclass
class Log:
    """What was seen.

    Attributes:
        losses: of every step.
        norms: of the gradient of every step, before clipping.
        by_part: root mean square of the gradient of each part that learns (embeddings, layers, head), over steps that
            were looked at.
        padding: share of padding in the batches.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    by_part: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    padding: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the curves, thinned to 200 points each."""
        parts = {name: _thinned(values) for name, values in self.by_part.items()}
        return {"loss": _thinned(self.losses), "gradient_norm": _thinned(self.norms), "gradient_by_part": parts}


def _thinned(values: list[float]) -> list[float]:
    step = max(1, len(values) // 200)
    return [float(f"{value:.6g}") for value in values[::step]]


class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # transformers exports it lazily, as Any
    """Writes a log while the Trainer works.

    What it has seen, and how long the other callbacks have waited, is kept with every checkpoint, so that a run that
    goes on is the same as one that was never interrupted.

    Args:
        learner: that is trained.
        stopper: that ends a training which gets no better.
        resumed: the checkpoint of an interrupted run, if there is one.
    """

    def __init__(
        self, learner: Learner, stopper: transformers.EarlyStoppingCallback, resumed: str | None = None
    ) -> None:
        self.log = Log()
        self._learner, self._stopper, self._resumed = learner, stopper, resumed
        self._parts = _parts_of(learner.reader)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on from where an interrupted run ended."""
        if self._resumed is None:
            return
        kept = json.loads((Path(self._resumed) / WATCHED).read_text("utf8"))
        self._learner.batches, self._learner.tokens = kept["batches"], kept["tokens"]
        self._stopper.early_stopping_patience_counter = kept["waited"]
        self.log.losses, self.log.norms = kept["losses"], kept["norms"]
        self.log.by_part.update(kept["by_part"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep what was seen with a checkpoint."""
        if not state.is_world_process_zero:
            return
        learner, log = self._learner, self.log
        kept = {
            "batches": learner.batches,
            "tokens": learner.tokens,
            "waited": self._stopper.early_stopping_patience_counter,
            "losses": log.losses,
            "norms": log.norms,
            "by_part": log.by_part,
        }
        write_text(Path(args.output_dir) / f"checkpoint-{state.global_step}" / WATCHED, json.dumps(kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Keep the loss and the norm of a step."""
        if logs and "loss" in logs:
            self.log.losses.append(float(logs["loss"]))
            self.log.norms.append(float(logs.get("grad_norm", 0.0)))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the size of every part's gradient; clipping has scaled all of them alike."""
        if state.global_step >= _OFTEN and state.global_step % 10:
            return
        for name, parameters in self._parts.items():
            squares = [(p.grad.float() ** 2).mean() for p in parameters if p.grad is not None]
            if squares:
                self.log.by_part[name].append(float(torch.stack(squares).mean().sqrt()))


def _parts_of(reader: Any) -> dict[str, list[nn.Parameter]]:
    """Return the weights that learn by part, from the input to the output."""
    layers = {f"layer {i}": set(map(id, layer.parameters())) for i, layer in enumerate(layers_of(reader.encoder))}
    found: dict[str, list[nn.Parameter]] = {"embeddings": [], **{name: [] for name in layers}, "head": []}
    for name, parameter in reader.named_parameters():
        if not parameter.requires_grad or parameter.ndim < 2:
            continue
        layer = next((part for part, ids in layers.items() if id(parameter) in ids), None)
        found[layer or ("embeddings" if "embedding" in name else "head")].append(parameter)
    return {name: parameters for name, parameters in found.items() if parameters}


class QuietBar(transformers.ProgressCallback):  # type: ignore[misc]
    """The Trainer's bar, without a line for every step's log."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print nothing: reporters and the bundle's history have the numbers."""
