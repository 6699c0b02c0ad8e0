"""`Watch`: what a training did, step by step; read by the diagnosis and kept in the bundle's history."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from louver.encoders.plug import layers_of
from louver.training.learner import Learner

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

    Args:
        learner: that is trained.
    """

    def __init__(self, learner: Learner) -> None:
        self.log = Log()
        self._learner = learner
        self._parts = _parts_of(learner.reader)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count from where an interrupted run ended."""
        self._learner.batches = state.global_step * args.gradient_accumulation_steps

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

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say how much of the batches was padding."""
        real, every = self._learner.tokens
        self.log.padding = 1 - real / every if every else 0.0


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
