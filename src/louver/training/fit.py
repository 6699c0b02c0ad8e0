"""The one training path: transformers' Trainer around a reader and an objective.

An objective is a function (reader, batch) -> (loss, outputs). Fine-tuning and distillation differ in nothing else.
"""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from louver.encoders.plug import without_attention_dropout
from louver.encoders.pooling import Reader
from louver.errors import TrainingError
from louver.measure.machine import has_bf16
from louver.training.options import TrainingOptions

Batch = dict[str, Tensor]
Feature = dict[str, Any]
Objective = Callable[[Reader, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fit:
    """What training gave.

    Attributes:
        history: one entry an epoch, the start included: validation score and loss.
        steps: optimizer steps taken.
    """

    history: list[dict[str, float]]
    steps: int


class Learner(nn.Module):
    """A reader with its objective, in the form that the Trainer runs: batch in, loss and logits out."""

    def __init__(self, reader: Reader, objective: Objective, accumulation: int) -> None:
        super().__init__()
        self.reader = reader
        self.objective = objective
        self.accumulation = accumulation
        self.batches = 0

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """Compute the loss; stop at the first one that is no number.

        Raises:
            TrainingError: naming the step.
        """
        loss, logits = self.objective(self.reader, batch)
        if self.training:
            self.batches += 1
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"loss is {loss.item()} at step {math.ceil(self.batches / self.accumulation)}; training stopped "
                    "and wrote nothing. Lower the learning rate, or look for broken rows"
                )
        return {"loss": loss, "logits": logits}

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Pass the Trainer's wish on to the encoder."""
        self.reader.encoder.activation_checkpointing_enable(**options)


def collate(pad_id: int) -> Callable[[Sequence[Feature]], Batch]:
    """Return a collator that pads ids to the longest text of a batch and stacks everything else."""

    def join(features: Sequence[Feature]) -> Batch:
        longest = max(len(f["input_ids"]) for f in features)
        ids = torch.full((len(features), longest), pad_id, dtype=torch.long)
        mask = torch.zeros(len(features), longest, dtype=torch.long)
        for row, feature in enumerate(features):
            count = len(feature["input_ids"])
            ids[row, :count] = torch.as_tensor(feature["input_ids"])
            mask[row, :count] = 1
        rest = {key: torch.as_tensor(np.stack([f[key] for f in features])) for key in features[0] if key != "input_ids"}
        return {"input_ids": ids, "attention_mask": mask, **rest}

    return join


def fit(
    reader: Reader,
    objective: Objective,
    train: Sequence[Feature],
    validation: Sequence[Feature],
    score: Callable[[np.ndarray, np.ndarray], float],
    options: TrainingOptions,
    *,
    pad_id: int = 0,
    progress: bool = True,
) -> Fit:
    """Train a reader in place and leave the weights of its best epoch in it.

    Args:
        reader: what is trained.
        objective: loss and outputs of a batch.
        train: features with ``input_ids`` and whatever the objective reads.
        validation: the same, for the score.
        score: maps (n, outputs) logits and their targets, in one order, to the number that is to rise.
        options: how to train.
        pad_id: id of padding.
        progress: show progress bars.

    Raises:
        TrainingError: if the loss stops being a number.
    """
    truth = np.stack([feature["labels"] for feature in validation])
    start = score(answers(reader, validation, pad_id), truth) if options.probe or not options.epochs else None
    if not options.epochs:
        return Fit([{"epoch": 0.0, "score": start or 0.0}], 0)
    before = copy.deepcopy(reader.state_dict()) if start is not None else None
    if not options.attention_dropout and reader.pooling != "own":
        without_attention_dropout(reader.encoder)
    learner = Learner(reader, objective, options.accumulation)
    transformers.set_seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="louver-training-") as scratch, _known_warnings():
        trainer = transformers.Trainer(
            model=learner,
            args=_arguments(options, scratch, progress),
            data_collator=collate(pad_id),
            train_dataset=list(train),
            eval_dataset=list(validation),
            # with group_by_length the Trainer reorders evaluation too: logits belong to its labels, not to our order
            compute_metrics=lambda found: {"score": score(np.asarray(found.predictions), np.asarray(found.label_ids))},
            callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=options.patience)],
            optimizers=(_optimizer(reader, options), None),
        )
        if not progress:
            trainer.remove_callback(transformers.PrinterCallback)
        outcome = trainer.train()
        history = [
            {key.removeprefix("eval_"): float(entry[key]) for key in ("epoch", "eval_score", "eval_loss")}
            for entry in trainer.state.log_history
            if "eval_score" in entry
        ]
    if before is not None and start is not None:
        history.insert(0, {"epoch": 0.0, "score": start})
        if start > max(entry["score"] for entry in history[1:]):
            reader.load_state_dict(before)
    reader.eval()
    return Fit(history, outcome.global_step)


@torch.inference_mode()
def answers(
    reader: Reader,
    rows: Sequence[Feature],
    pad_id: int,
    *,
    ask: Callable[[Tensor, Tensor], Tensor] | None = None,
    tokens: int = 8192,
) -> np.ndarray:
    """Run a reader over features, in batches of similar length.

    Args:
        reader: put into evaluation mode.
        rows: features with ``input_ids``.
        pad_id: id of padding.
        ask: what to run, from ids and mask to one row a text; the reader itself if None.
        tokens: tokens a batch at most.

    Returns:
        (n, outputs), in the order of the rows.
    """
    reader.eval()
    device = next(reader.parameters()).device
    join = collate(pad_id)
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    while order:
        taken = 1
        while taken < len(order) and len(rows[order[taken]]["input_ids"]) * (taken + 1) <= tokens:
            taken += 1
        batch = join([{"input_ids": rows[i]["input_ids"]} for i in order[:taken]])
        ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        output = (ask or reader)(ids, mask).float().cpu().numpy()
        for i, row in zip(order[:taken], output, strict=True):
            found[i] = row
        order = order[taken:]
    return np.stack(found)


def _arguments(options: TrainingOptions, scratch: str | Path, progress: bool) -> transformers.TrainingArguments:
    bf16 = options.precision == "bf16" or (options.precision == "auto" and has_bf16())
    return transformers.TrainingArguments(
        output_dir=str(scratch),
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        activation_checkpointing=options.gradient_checkpointing,
        bf16=bf16,
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
        label_names=["labels"],
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=not progress,
        seed=options.seed,
    )


def _optimizer(reader: Reader, options: TrainingOptions) -> torch.optim.AdamW:
    """Return AdamW with decay on matrices alone, and the head's own learning rate."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in reader.named_parameters():
        if parameter.requires_grad:
            rate = options.head_learning_rate if name.startswith("head.") else options.learning_rate
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
