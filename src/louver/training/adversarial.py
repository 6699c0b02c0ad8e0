"""Small changes to the embeddings that hurt most, learned from too: FGM (Miyato 2017) and PGD (Madry 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PGD_STEPS = 3


def with_adversary(table: nn.Module, loss: Tensor, again: Callable[[], Tensor], *, size: float, steps: int) -> Tensor:
    """Return the mean of a batch's loss and of its loss under the worst small change of its embeddings.

    Args:
        table: word embeddings; its output is changed.
        loss: of the batch as it is; its graph is kept.
        again: computes the loss of the same batch anew.
        size: length of the change of a text, over all its tokens.
        steps: 1 goes up the gradient once (FGM); more go in small steps and are drawn back to `size` (PGD).
    """
    change: Tensor | None = None
    outputs: list[Tensor] = []

    def shift(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        if not output.requires_grad:  # of a frozen table: its output is what moves
            output = output.detach().requires_grad_()
        outputs.append(output if change is None else output + change)
        return outputs[-1]

    hook = table.register_forward_hook(shift)
    try:
        for _ in range(steps):
            outputs.clear()
            (gradient,) = torch.autograd.grad(again(), outputs[0])
            stride = size if steps == 1 else 2 * size / steps
            moved = _scaled(gradient, stride) if change is None else change + _scaled(gradient, stride)
            change = _within(moved, size).detach()
        worst = again()
    finally:
        hook.remove()
    return (loss + worst) / 2


def _scaled(gradient: Tensor, length: float) -> Tensor:
    norms = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
    found: Tensor = gradient * (length / norms)[:, None, None]
    return found


def _within(change: Tensor, size: float) -> Tensor:
    norms = change.flatten(1).norm(dim=1).clamp(min=1e-12)
    found: Tensor = change * (size / norms).clamp(max=1.0)[:, None, None]
    return found
