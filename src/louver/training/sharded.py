"""Weights that are spread over processes: settings for FSDP and ZeRO-3, and how they come together to be judged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch.distributed as dist
import transformers

from louver.encoders.plug import layers_of
from louver.encoders.pooling import Reader
from louver.errors import OptionError, need_extra
from louver.training.judgement import Judgement
from louver.training.masked import MaskedWords
from louver.training.options import Schedule
from louver.training.processes import count, is_first

Pupil = TypeVar("Pupil", Reader, MaskedWords)


def settings(options: Schedule, reader: Reader | MaskedWords) -> dict[str, Any]:
    """Return what the Trainer's arguments need.

    Raises:
        OptionError: if there is nothing to spread over.
        MissingExtraError: if DeepSpeed is wanted and not installed.
    """
    if options.sharding == "none":
        return {}
    if count() == 1:
        raise OptionError(f"sharding {options.sharding!r} spreads weights over processes; give two or more of them")
    if options.sharding == "fsdp":
        layers = sorted({type(layer).__name__ for layer in layers_of(reader.encoder)})
        return {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": layers}}
    need_extra("train", "deepspeed")
    zero: dict[str, Any] = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
    automatic = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    precisions = {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
    return {"deepspeed": {"zero_optimization": zero, **dict.fromkeys(automatic, "auto"), **precisions}}


def whole(options: Schedule, what: str) -> None:
    """Refuse shared weights for what has hold of an encoder beside the trainer.

    Raises:
        OptionError: if weights are to be shared.
    """
    if options.sharding != "none":
        raise OptionError(f"{what} wants every process to hold all weights; leave sharding {options.sharding!r} out")


class Whole(Generic[Pupil]):
    """A copy of what learns, whole in the first process, while the others hold shares.

    Args:
        reader: before it is spread.
    """

    def __init__(self, reader: Pupil) -> None:
        self.copy: Pupil = copy.deepcopy(reader)

    def gather(self, trainer: transformers.Trainer) -> Pupil:
        """Put the weights together in the first process; all of them must call."""
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        if is_first():
            own = {name.removeprefix("reader."): value for name, value in state.items()}
            self.copy.load_state_dict(own, strict=False)
            self.copy.encoder.tie_weights()
        found: Pupil = self.copy
        return found

    def judge(self, trainer: transformers.Trainer, judge: Callable[[Pupil], Judgement]) -> Judgement:
        """Judge in the first process; all of them get the score."""
        whole = self.gather(trainer)
        found = judge(whole) if is_first() else Judgement(0.0, np.empty(0))
        shared = [found.score]
        dist.broadcast_object_list(shared, src=0)
        return Judgement(shared[0], found.logits)
