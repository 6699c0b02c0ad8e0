"""How to train, with the field's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from louver.bundle import Bundle
from louver.errors import OptionError
from louver.patterns import Approximation, Selector, holds, parse

SPARSE_RATE, SPARSE_WARMUP = 0.75, 1.5
"""What a sparse pattern is said to want of the learning rate and the warm-up of a dense one."""


class Schedule(BaseModel):
    """What every training has; defaults are those of the BERT papers and of the articles."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    learning_rate: float = Field(5e-5, gt=0)
    """Of the encoder."""
    batch_size: int = Field(16, ge=1)
    """Texts (packed rows, in pretraining) a step, on one device."""
    accumulation: int = Field(1, ge=1)
    """Batches whose gradients are added up to one step."""
    epochs: int = Field(3, ge=0)
    """Passes over the training set at most."""
    patience: int = Field(2, ge=1)
    """Epochs without a better validation score after which training stops."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = Field(0.01, ge=0)
    max_gradient: float = Field(1.0, gt=0)
    """Norm to which larger gradients are clipped."""
    gradient_checkpointing: bool = False
    """Recompute states in the backward pass: less memory, about a third more time."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Of products; weights, sums and the softmax stay in float32. "auto" takes bf16 where it is faster: on GPUs that
    have it, and on CPUs with AMX."""
    attention_dropout: bool = False
    """Keep the checkpoint's dropout on attention weights; without it the fused kernels can be used."""
    adversary: Literal["fgm", "pgd"] | None = None
    """Learn from each batch a second time, under the small change of its embeddings that hurts most: one step up the
    gradient, or three small ones."""
    adversary_size: float = Field(0.3, gt=0)
    """Length of that change, over all tokens of a text."""
    sharding: Literal["none", "fsdp", "zero3"] = "none"
    """How several processes hold weights, gradients and optimizer: each all of them (DDP), or each a share (PyTorch's
    FSDP, or DeepSpeed's ZeRO-3)."""
    drop_edges: float | None = Field(None, gt=0, lt=1)
    """Share of each layer's pairs that a batch keeps, drawn anew each time (Rong et al. 2020); None keeps all."""
    sparse_advice: bool = True
    """Under a sparse pattern, learn at three quarters of the default rate and warm up half as long again. What was
    given stays as it was given."""
    checkpoint_minutes: float | None = Field(15.0, gt=0)
    """Keep what an interrupted run has also within an epoch, so often; None keeps it at the end of epochs alone."""
    report: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] | None = None
    """Trainer's reporters, beside the curves in the bundle's history; None takes TensorBoard where it is installed.
    TensorBoard's files lie in ``tensorboard/`` beside the bundle."""
    max_length: int | None = Field(None, ge=8)
    """Tokens to train on at most; the bundle's length if None."""
    seed: int = Field(0, ge=0)


class TrainingOptions(Schedule):
    """Settings of a fine-tuning."""

    head_learning_rate: float = Field(1e-4, gt=0)
    """Of the head; after `probe` it needs no more than the encoder, without it 1e-3 or more."""
    probe: bool = True
    """Begin with the best linear head on frozen states instead of a random one (Kumar et al. 2022, LP-FT): one forward
    pass, and the encoder's first steps do not answer a head of noise. With 0 epochs that is all."""
    domain_weight: float = Field(0.1, gt=0)
    """Of telling domains apart, where texts of another one are given."""
    class_weights: bool = False
    """Give every class the same say in the loss."""
    truncation: str | None = None
    """What to do with longer texts, in training and afterwards; the bundle's own if None, and "head" where it refuses
    them."""

    @model_validator(mode="after")
    def _something_is_trained(self) -> TrainingOptions:
        if not self.epochs and not self.probe:
            raise ValueError("epochs 0 without probe would leave a random head; leave probe on, or train an epoch")
        return self


class ClozeOptions(Schedule):
    """Settings of labels as words."""

    learning_rate: float = Field(1e-4, gt=0)


class ContrastOptions(Schedule):
    """Settings of embeddings; defaults are SimCSE's (Gao et al. 2021, appendix A)."""

    learning_rate: float = Field(3e-5, gt=0)
    batch_size: int = Field(64, ge=2)
    epochs: int = Field(1, ge=1)
    scale: float = Field(20.0, gt=0)
    """Of the cosines in the softmax; 1 / temperature."""
    validation: float = Field(0.05, gt=0, lt=1)
    """Share of the rows that is held out where no scored pairs are given to judge by."""


class PretrainingOptions(Schedule):
    """Settings of a pretraining; defaults are BERT's where a checkpoint is trained on."""

    learning_rate: float = Field(1e-4, gt=0)
    epochs: int = Field(3, ge=1)
    share: float = Field(0.15, gt=0, lt=1)
    """Of the tokens, that are to be found."""
    unit: Literal["token", "word", "span"] = "token"
    """What is hidden at a time."""
    masked: float = Field(0.8, ge=0, le=1)
    """Share of the hidden tokens that the mask stands for."""
    replaced: float = Field(0.1, ge=0, le=1)
    """Share of the hidden tokens that a random one stands for; the rest stays."""
    static_masks: bool = False
    """Hide the same tokens in every epoch."""
    packing: bool = True
    """Put several short texts into one row; each keeps its own attention and positions."""
    sentences: Literal["none", "next", "order"] = "none"
    """A second question, half of the rows each way: does the second part of a row follow the first or come from another
    text (Devlin et al. 2019, section 3.1), or do both stand in their order (Lan et al. 2020, section 3.1)? A row is
    then one pair."""
    validation: float = Field(0.05, gt=0, lt=1)
    """Share of the texts that is held out."""


Options = TypeVar("Options", bound=Schedule)


def suited(options: Options, source: Bundle, say: Callable[[str], object]) -> Options:
    """Return options as they hold for a bundle on this machine, and say what the advice for sparse patterns changes.

    Raises:
        OptionError: if the machine has no such precision.
    """
    if options.precision == "fp16" and not torch.cuda.is_available():
        raise OptionError("precision fp16 is for GPUs; take float32 or bf16")
    if not options.sparse_advice or not _is_sparse(source.card.pattern, options.max_length or source.card.max_length):
        return options
    advised = {"learning_rate": options.learning_rate * SPARSE_RATE, "warmup": min(options.warmup * SPARSE_WARMUP, 0.9)}
    changed = {name: value for name, value in advised.items() if name not in options.model_fields_set}
    if changed:
        told = ", ".join(f"{name} {value:.3g}" for name, value in changed.items())
        say(f"sparse pattern: {told} (--no-sparse-advice keeps the usual ones)")
    return options.model_copy(update=changed)


def _is_sparse(written: str, length: int) -> bool:
    """Say whether a pattern leaves pairs out of a text of this many tokens."""
    pattern = parse(written).at(length)
    # what goes by content has no pairs to count
    return holds(pattern, Selector, Approximation) or pattern.cost(length).pair_ratio > 1.01


def tokens_to_read(options: Schedule, source: Bundle) -> int:
    """Return the tokens of a text that training reads.

    Raises:
        OptionError: if more are asked for than the bundle reads.
    """
    most = source.card.max_length
    if options.max_length is not None and options.max_length > most:
        raise OptionError(f"{source.path} reads {most} tokens, got max_length={options.max_length}; extend it first")
    return options.max_length or most
