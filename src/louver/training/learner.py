"""What learns, with its objective, in the form that transformers' Trainer runs: batch in, loss out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from louver.encoders.plug import drop_edges
from louver.encoders.pooling import Reader
from louver.errors import TrainingError
from louver.tasks import Batch
from louver.training.adversarial import PGD_STEPS, with_adversary
from louver.training.masked import MaskedWords
from louver.training.options import Schedule

Objective = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""(what learns, batch) -> (loss, outputs)."""


class Learner(nn.Module):
    """A reader with its objective.

    Args:
        reader: that learns.
        objective: its loss.
        options: of the training.
        also: what learns beside it, for the objective alone.

    Attributes:
        batches: seen in training.
        tokens: real ones and all, over these batches.
    """

    def __init__(
        self,
        reader: Reader | MaskedWords,
        objective: Objective,
        options: Schedule,
        also: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.also = also
        self.objective = objective
        self.options = options
        self.batches = 0
        self.tokens = [0, 0]
        self._originals = _shared(self)
        self._keys_to_ignore_on_save = list(self._originals)  # the Trainer reads this, and ties weights after loading
        self.register_state_dict_post_hook(lambda *found: self._without_shared(*found))  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(lambda *found: self._with_shared(*found))  # type: ignore[no-untyped-call]

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """Compute the loss; stop at the first one that is no number.

        Raises:
            TrainingError: naming the step, the first layer that gave no numbers, and the batch.
        """
        if self.training and self.options.drop_edges is not None:
            drop_edges(self.reader.encoder, self.options.drop_edges, self.options.seed + self.batches)
        loss, logits = self.objective(self.reader, batch)
        if self.training and self.options.adversary is not None:
            table = self.reader.encoder.get_input_embeddings()
            steps = 1 if self.options.adversary == "fgm" else PGD_STEPS
            size = self.options.adversary_size
            loss = with_adversary(table, loss, lambda: self.objective(self.reader, batch)[0], size=size, steps=steps)
        if self.training:
            self.batches += 1
            self.tokens[0] += int(batch["attention_mask"].sum())
            self.tokens[1] += batch["attention_mask"].numel()
            if not torch.isfinite(loss):
                step, where = math.ceil(self.batches / self.options.accumulation), self._first_without_numbers(batch)
                raise TrainingError(
                    f"loss is {loss.item()} at step {step} ({where}): lower the learning rate, or look for broken rows"
                )
        return {"loss": loss, "logits": logits}

    def padding(self) -> float:
        """Return the share of padding in the batches so far."""
        real, every = self.tokens
        return 1 - real / every if every else 0.0

    def _first_without_numbers(self, batch: Batch) -> str:
        """Say where numbers end: in the weights already, or behind which module of this batch."""
        for name, parameter in self.reader.named_parameters():
            if not torch.isfinite(parameter).all():
                return f"the weights {name} are no numbers since the step before"
        found: list[str] = []

        def look(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, __: Any, output: Any) -> None:
                first = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", output)
                if isinstance(first, Tensor) and not torch.isfinite(first).all():
                    found.append(name)

            return hook

        hooks = [module.register_forward_hook(look(name)) for name, module in self.reader.named_modules() if name]
        try:
            with torch.no_grad():
                self.objective(self.reader, batch)
        finally:
            for one in hooks:
                one.remove()
        rows = f", texts {batch['row'].tolist()}" if "row" in batch else ""
        where = f"first in the output of {found[0]}" if found else "first in the loss"
        return f"{where}, batch of {len(batch['input_ids'])} rows{rows}"

    def _without_shared(self, _: nn.Module, found: dict[str, Any], *__: Any) -> None:
        """Leave out of a state what is another's: safetensors stores nothing twice."""
        for name in self._keys_to_ignore_on_save:
            found.pop(name, None)

    def _with_shared(self, _: nn.Module, found: dict[str, Any], prefix: str, *__: Any) -> None:
        """Put into a state what was left out of it: DeepSpeed wants every name."""
        for name, original in self._originals.items():
            if prefix + original in found:
                found.setdefault(prefix + name, found[prefix + original])

    def tie_weights(self) -> None:
        """Share again what was left out."""
        self.reader.encoder.tie_weights()

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Pass the Trainer's wish on to the encoder."""
        self.reader.encoder.activation_checkpointing_enable(**options)


def _shared(module: nn.Module) -> dict[str, str]:
    """Return weights that are another's too, and whose: a masked-word head shares the embeddings."""
    first: dict[int, str] = {}
    owners = {name: first.setdefault(x.data_ptr(), name) for name, x in module.state_dict().items()}
    return {name: owner for name, owner in owners.items() if owner != name}
