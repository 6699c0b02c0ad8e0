"""The one training path: transformers' Trainer around what learns and an objective.

An objective is a function (pupil, batch) -> (loss, outputs). Pretraining, fine-tuning, distillation and contrastive
training differ in nothing else.
"""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

from louver.encoders.plug import without_attention_dropout
from louver.encoders.pooling import Reader
from louver.errors import TrainingError
from louver.measure.machine import has_fast_bf16
from louver.storage import storing
from louver.tasks import Batch, Feature, collate
from louver.training.judgement import Judgement
from louver.training.learner import Learner, Objective
from louver.training.masked import MaskedWords
from louver.training.options import Schedule, TrainingOptions
from louver.training.processes import as_the_first, count, is_first, wait
from louver.training.reporters import reporters
from louver.training.resume import Places
from louver.training.sharded import Whole, settings
from louver.training.watch import WATCHED, Log, QuietBar, Watch

Say = Callable[[str], object]
Pupil = TypeVar("Pupil", Reader, MaskedWords)
"""What learns: a module around a transformers model."""
Judge = Callable[[Pupil], Judgement]
Rows = Sequence[Feature] | Dataset[Feature]
_LOGGED = 2000
"""Steps that are logged at most; more are logged as means."""


@dataclass(frozen=True)
class Fit:
    """What training gave.

    Attributes:
        best: judgement of the weights that were kept.
        history: one entry an epoch, the start included: validation score, and training loss.
        steps: optimizer steps taken.
        log: what training did, step by step.
        ended: why training ended before its time, if its loss became no number after an epoch was judged.
    """

    best: Judgement
    history: list[dict[str, float]]
    steps: int
    log: Log
    ended: str = ""


def fit(
    reader: Pupil,
    objective: Objective,
    train: Rows,
    judge: Judge[Pupil],
    options: Schedule,
    *,
    start: Judgement | None = None,
    collator: Callable[[Sequence[Feature]], Batch] | None = None,
    places: Places | None = None,
    also: nn.Module | None = None,
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
        collator: makes a batch; pads ``input_ids`` with 0 and stacks the rest if None.
        places: where an interrupted run finds itself again, and where curves go; if None, nowhere.
        also: what else learns, and is not kept.
        progress: show progress bars.
        say: told the score of every epoch.

    Raises:
        TrainingError: if the loss stops being a number before an epoch was judged. Afterwards the best epoch is kept.
    """
    if not options.epochs:
        found = start or judge(reader)
        return Fit(found, [{"epoch": 0.0, "score": found.score}], 0, Log())
    before = copy.deepcopy(reader.state_dict()) if start is not None else None
    if not options.attention_dropout:
        without_attention_dropout(reader.encoder)
    judged: list[Judgement] = []
    began = time.perf_counter()

    whole = Whole(reader) if options.sharding != "none" else None

    def judge_epoch(trainer: transformers.Trainer) -> float:
        judged.append(judge(reader) if whole is None else whole.judge(trainer, judge))
        epoch, took = round(trainer.state.epoch or 0), time.perf_counter() - began
        say(f"epoch {epoch} of {options.epochs}: score {judged[-1].score:.4f} after {took:.0f} s")
        return judged[-1].score

    learner = Learner(reader, objective, options, also)
    stopper = transformers.EarlyStoppingCallback(early_stopping_patience=options.patience)
    transformers.set_seed(options.seed)
    with storing("a checkpoint"), ExitStack() as stack:
        stack.enter_context(_known_warnings())
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="louver-training-"))
        home = Path(scratch) if places is None else places.checkpoints
        resumed = _last(home, say)
        watch = Watch(learner, stopper, resumed)
        rows: Any = train if isinstance(train, Dataset) else list(train)
        trainer = _Trainer(
            judge_epoch,
            options,
            model=learner,
            args=_arguments(options, home, len(rows), resumable=places is not None, **settings(options, reader)),
            data_collator=collator or collate(0),
            train_dataset=rows,
            eval_dataset=[],  # judged by `judge`
            callbacks=[watch, stopper, *_callbacks(options, progress), *reporters(options, places)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        ended = trainer.train_as_far_as_it_goes(resumed, say)
        watch.log.padding = learner.padding()
        history = _by_epoch(trainer.state.log_history)
        reached = trainer.state.best_metric
        if whole is not None:
            reader.__dict__["_modules"] = whole.gather(trainer)._modules
        wait()  # before the first process takes the checkpoints away
    reader.eval()
    best = max(judged, key=lambda one: one.score, default=None)  # the first of equals, as the Trainer keeps it
    if best is None or best.score != reached:  # an epoch before an interruption was better
        best = judge(reader) if whole is None or is_first() else Judgement(reached or 0.0, np.empty(0))
    if before is not None and start is not None:
        history.insert(0, {"epoch": 0.0, "score": start.score})
        if start.score > best.score:
            reader.load_state_dict(before)
            best = start
    reader.eval()
    return Fit(best, history, trainer.state.global_step, watch.log, ended)


class _Trainer(transformers.Trainer):  # type: ignore[misc]  # transformers exports it lazily, as Any
    """The Trainer, with our own judgement after each epoch: of whole texts, each at its own length.

    Its own evaluation pads to batches in training's order, and scores windows apart from each other.
    """

    def __init__(self, judge: Callable[[transformers.Trainer], float], options: Schedule, **rest: Any) -> None:
        super().__init__(**rest)
        self.judge, self.options = judge, options
        # our losses are means already; it would take a forward of any keywords for one that divides by a whole batch's
        # labels, and add up the losses of accumulated batches and of processes
        self.model_accepts_loss_kwargs = False
        self.control: transformers.TrainerControl
        self.optimizer: torch.optim.Optimizer | None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return AdamW with decay on matrices alone, and a new head's own learning rate."""
        if self.optimizer is None:
            self.optimizer = _optimizer(self.model if model is None else model, self.options)
        return self.optimizer

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:  # what DeepSpeed put together has shared weights twice
            state_dict = {k: v for k, v in state_dict.items() if k not in self.model._keys_to_ignore_on_save}
        super()._save(output_dir, state_dict)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        lengths = getattr(self.train_dataset, "lengths", None)
        if lengths is None:
            lengths = [len(row["input_ids"]) for row in self.train_dataset]
        # of all processes, so that together they see the rows that one would see
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        follow = getattr(self.train_dataset, "set_epoch", lambda _: None)
        keys = getattr(self.train_dataset, "keys", None)
        return _Sampler(batch, list(lengths), self.args.seed, follow, keys, self.args.train_batch_size)

    def train_as_far_as_it_goes(self, resumed: str | None, say: Say) -> str:
        """Train; if the loss becomes no number after an epoch was judged, go back to the best and say why."""
        try:
            self.train(resume_from_checkpoint=resumed)
        except TrainingError as error:
            if not self.state.best_model_checkpoint or count() > 1:
                raise
            say(f"{error}; the best epoch before is kept")
            self._load_best_model()
            return str(error)
        return ""

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        metrics = {f"{metric_key_prefix}_score": self.judge(self)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Sampler(transformers.trainer_pt_utils.LengthGroupedSampler):  # type: ignore[misc]
    """The Trainer's batches of similar lengths, in an order that seed and epoch alone decide.

    Its own draws from the state of torch's generator, which a run that goes on within an epoch does not have again.
    There accelerate tells the sampler which epoch it is, and not the data set, so the sampler passes it on.

    Args:
        batch_size: rows of a step, over all batches and processes.
        lengths: of all rows.
        seed: of the order.
        follow: told the epoch.
        keys: of each row; rows that share one do not stand in one batch, as long as there are others.
        size: rows of a batch.
    """

    def __init__(
        self,
        batch_size: int,
        lengths: list[int],
        seed: int,
        follow: Callable[[int], object],
        keys: Sequence[set[int]] | None,
        size: int,
    ) -> None:
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.follow, self.keys, self.size = seed, follow, keys, size
        self.set_epoch(0)

    def __iter__(self) -> Iterator[int]:
        order: list[int] = list(super().__iter__())
        return iter(order if self.keys is None else _apart(order, self.keys, self.size))

    def set_epoch(self, epoch: int) -> None:
        self.follow(int(epoch))
        self.generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(epoch))


def _apart(order: Sequence[int], keys: Sequence[set[int]], size: int) -> list[int]:
    """Let a row wait for a later batch if it shares a key with one that stands in its own; keep every row."""
    found: list[int] = []
    waiting, ahead = list[int](), iter(order)
    while len(found) < len(order):
        batch, taken, still = list[int](), set[int](), list[int]()
        for row in chain(waiting, ahead):
            if taken.isdisjoint(keys[row]):
                batch.append(row)
                taken |= keys[row]
            else:
                still.append(row)
            if len(batch) == size:
                break
        seen = len(batch) + len(still)
        waiting = still + waiting[seen:]
        if len(batch) < size:  # none is left that would go with them
            batch, waiting = [*batch, *waiting[: size - len(batch)]], waiting[size - len(batch) :]
        found += batch
    return found


def _callbacks(options: Schedule, progress: bool) -> list[Any]:
    found: list[Any] = []
    if options.checkpoint_minutes is not None:
        found.append(_SaveByTime(60 * options.checkpoint_minutes))
    return [*found, QuietBar()] if progress else found


class _SaveByTime(transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps a checkpoint within an epoch that takes long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.saved = seconds, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        late = time.monotonic() - self.saved > self.seconds
        control.should_save = control.should_save or as_the_first(late)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.saved = time.monotonic()


def _last(home: Path, say: Say) -> str | None:
    """Return the last checkpoint of an interrupted run, if there is one."""
    whole = [file.parent for file in home.glob(f"checkpoint-*/{WATCHED}")]  # written last
    if not whole:
        return None
    last = max(whole, key=lambda path: int(path.name.rpartition("-")[2]))
    say(f"goes on from step {last.name.rpartition('-')[2]} of an interrupted run")
    return str(last)


def _by_epoch(log: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Join what the Trainer logged of an epoch: the mean training loss, and the score at its end."""
    epochs, losses = [], list[float]()
    for entry in log:
        if "loss" in entry:
            losses.append(float(entry["loss"]))
        if "eval_score" in entry:
            epochs.append({"epoch": float(entry["epoch"]), "loss": float(np.mean(losses or [np.nan]))})
            epochs[-1]["score"] = float(entry["eval_score"])
            losses = []
    return epochs


def _arguments(
    options: Schedule, home: Path, rows: int, *, resumable: bool, **sharding: Any
) -> transformers.TrainingArguments:
    bf16 = options.precision == "bf16" or (options.precision == "auto" and has_fast_bf16())
    steps = options.epochs * -(-rows // (options.batch_size * options.accumulation * count()))
    on_cpus = not torch.cuda.is_available()
    return transformers.TrainingArguments(
        output_dir=str(home),
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_gradient,
        activation_checkpointing=options.gradient_checkpointing,
        bf16=bf16,
        fp16=options.precision == "fp16",
        use_cpu=on_cpus and (bf16 or count() > 1),  # the Trainer wants to hear that it is meant
        ddp_backend="gloo" if on_cpus and count() > 1 else None,
        ddp_find_unused_parameters=False,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        save_only_model=not resumable,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=max(1, steps // _LOGGED),
        logging_nan_inf_filter=False,
        report_to="none",  # see `reporters`
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,  # our own bar
        seed=options.seed,
        **sharding,
    )


def _optimizer(learner: nn.Module, options: Schedule) -> torch.optim.AdamW:
    """Return AdamW with decay on matrices alone, and a new head's own learning rate."""
    head_rate = options.head_learning_rate if isinstance(options, TrainingOptions) else options.learning_rate
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            rate = options.learning_rate if name.startswith("reader.encoder.") else head_rate
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
