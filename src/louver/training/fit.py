"""The one training path: transformers' Trainer around what learns and an objective.

An objective is a function (pupil, batch) -> (loss, outputs). Pretraining, fine-tuning and distillation differ in
nothing else.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

from louver.encoders.plug import drop_edges, without_attention_dropout
from louver.encoders.pooling import Reader
from louver.errors import TrainingError
from louver.measure.machine import has_bf16
from louver.storage import storing
from louver.tasks import Batch, Feature, collate
from louver.training.masked import MaskedWords
from louver.training.options import Schedule, TrainingOptions

Say = Callable[[str], object]
Objective = Callable[[Any, Batch], tuple[Tensor, Tensor]]
"""(what learns, batch) -> (loss, outputs)."""


Pupil = TypeVar("Pupil", Reader, MaskedWords)
"""What learns: a module around a transformers model."""


@dataclass(frozen=True)
class Judgement:
    """A reader on validation.

    Attributes:
        score: the number that is to rise.
        logits: (texts, outputs) that it was made of.
    """

    score: float
    logits: np.ndarray


@dataclass(frozen=True)
class Fit:
    """What training gave.

    Attributes:
        best: judgement of the weights that were kept.
        history: one entry an epoch, the start included: validation score, and training loss.
        steps: optimizer steps taken.
    """

    best: Judgement
    history: list[dict[str, float]]
    steps: int


class Learner(nn.Module):
    """A reader with its objective, in the form that the Trainer runs: batch in, loss and logits out."""

    def __init__(self, reader: Reader | MaskedWords, objective: Objective, options: Schedule) -> None:
        super().__init__()
        self.reader = reader
        self.objective = objective
        self.options = options
        self.batches = 0
        self._keys_to_ignore_on_save = _shared(self)  # the Trainer reads this, and ties weights after loading
        self.register_state_dict_post_hook(lambda *found: self._without_shared(*found))  # type: ignore[no-untyped-call]

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """Compute the loss; stop at the first one that is no number.

        Raises:
            TrainingError: naming the step.
        """
        if self.training and self.options.drop_edges is not None:
            drop_edges(self.reader.encoder, self.options.drop_edges, self.options.seed + self.batches)
        loss, logits = self.objective(self.reader, batch)
        if self.training:
            self.batches += 1
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"loss is {loss.item()} at step {math.ceil(self.batches / self.options.accumulation)}; training "
                    "stopped and wrote nothing. Lower the learning rate, or look for broken rows"
                )
        return {"loss": loss, "logits": logits}

    def _without_shared(self, _: nn.Module, found: dict[str, Any], *__: Any) -> None:
        """Leave out of a state what is another's: safetensors stores nothing twice."""
        for name in self._keys_to_ignore_on_save:
            found.pop(name, None)

    def tie_weights(self) -> None:
        """Share again what was left out."""
        self.reader.encoder.tie_weights()

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Pass the Trainer's wish on to the encoder."""
        self.reader.encoder.activation_checkpointing_enable(**options)


def _shared(module: nn.Module) -> list[str]:
    """Return the names of weights that are another's too: a masked-word head shares the embeddings."""
    first: dict[int, str] = {}
    return [name for name, x in module.state_dict().items() if first.setdefault(x.data_ptr(), name) != name]


class _Trainer(transformers.Trainer):  # type: ignore[misc]  # transformers exports it lazily, as Any
    """The Trainer, with our own judgement after each epoch: of whole texts, each at its own length.

    Its own evaluation pads to batches in training's order, and scores windows apart from each other.
    """

    def __init__(self, judge: Callable[[], float], **rest: Any) -> None:
        super().__init__(**rest)
        self.judge = judge
        self.control: transformers.TrainerControl

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        metrics = {f"{metric_key_prefix}_score": self.judge()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def fit(
    reader: Pupil,
    objective: Objective,
    train: Sequence[Feature] | Dataset[Feature],
    judge: Callable[[Pupil], Judgement],
    options: Schedule,
    *,
    start: Judgement | None = None,
    pad_id: int = 0,
    collator: Callable[[Sequence[Feature]], Batch] | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
) -> Fit:
    """Train a reader in place and leave the weights of its best epoch in it.

    Args:
        reader: what is trained.
        objective: loss and outputs of a batch.
        train: features with ``input_ids`` and whatever the objective reads.
        judge: judges the reader as it stands.
        options: how to train.
        start: judgement of the reader before training; then the start counts as an epoch, and may be the best.
        pad_id: id of padding.
        collator: makes a batch; pads ``input_ids`` and stacks the rest if None.
        progress: show progress bars.
        say: told the score of every epoch.

    Raises:
        TrainingError: if the loss stops being a number.
    """
    if start is not None:
        say(f"linear probe: score {start.score:.4f}")
    if not options.epochs:
        found = start or judge(reader)
        return Fit(found, [{"epoch": 0.0, "score": found.score}], 0)
    before = copy.deepcopy(reader.state_dict()) if start is not None else None
    if not options.attention_dropout:
        without_attention_dropout(reader.encoder)
    judged: list[Judgement] = []
    began = time.perf_counter()

    def judge_epoch() -> float:
        judged.append(judge(reader))
        took = time.perf_counter() - began
        say(f"epoch {len(judged)} of {options.epochs}: score {judged[-1].score:.4f} after {took:.0f} s")
        return judged[-1].score

    learner = Learner(reader, objective, options)
    transformers.set_seed(options.seed)
    with storing("a checkpoint"), tempfile.TemporaryDirectory(prefix="louver-training-") as scratch, _known_warnings():
        trainer = _Trainer(
            judge_epoch,
            model=learner,
            args=_arguments(options, scratch, progress),
            data_collator=collator or collate(pad_id),
            train_dataset=train if isinstance(train, Dataset) else list(train),
            eval_dataset=[],  # judged by `judge`
            callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=options.patience)],
            optimizers=(_optimizer(reader, options), None),
        )
        if not progress:
            trainer.remove_callback(transformers.PrinterCallback)
        outcome = trainer.train()
        history = _by_epoch(trainer.state.log_history)
    best = max(judged, key=lambda one: one.score)  # the first of equals, as the Trainer keeps it
    if before is not None and start is not None:
        history.insert(0, {"epoch": 0.0, "score": start.score})
        if start.score > best.score:
            reader.load_state_dict(before)
            best = start
    reader.eval()
    return Fit(best, history, outcome.global_step)


def _by_epoch(log: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Join what the Trainer logged of an epoch: the training loss, then the score."""
    epochs: dict[float, dict[str, float]] = {}
    for entry in log:
        found = epochs.setdefault(entry["epoch"], {"epoch": float(entry["epoch"])})
        found |= {name.removeprefix("eval_"): float(entry[name]) for name in ("loss", "eval_score") if name in entry}
    return [entry for entry in epochs.values() if "score" in entry]


def _arguments(options: Schedule, scratch: str | Path, progress: bool) -> transformers.TrainingArguments:
    bf16 = options.precision == "bf16" or (options.precision == "auto" and has_bf16())
    return transformers.TrainingArguments(
        output_dir=str(scratch),
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        activation_checkpointing=options.gradient_checkpointing,
        bf16=bf16,
        use_cpu=bf16 and not torch.cuda.is_available(),  # the Trainer wants to hear that bf16 on a CPU is meant
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=not progress,
        seed=options.seed,
    )


def _optimizer(reader: nn.Module, options: Schedule) -> torch.optim.AdamW:
    """Return AdamW with decay on matrices alone, and a new head's own learning rate."""
    head_rate = options.head_learning_rate if isinstance(options, TrainingOptions) else options.learning_rate
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in reader.named_parameters():
        if parameter.requires_grad:
            rate = head_rate if name.startswith("head.") else options.learning_rate
            decay = options.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": found, "lr": rate, "weight_decay": decay} for (rate, decay), found in groups.items()]
    )


class _known_warnings(warnings.catch_warnings):  # noqa: N801 - used like a function
    """Hold back warnings that transformers and accelerate give about their own calls."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        return found
