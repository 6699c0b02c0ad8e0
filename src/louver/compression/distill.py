"""`distill`: a student of some of the teacher's layers that learns the teacher's answers (Hinton et al. 2015).

Covers students that are layers of their teacher, with the teacher's width, tokenizer and labels.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from louver.bundle import Bundle, check_target
from louver.encoders.plug import keep_layers
from louver.encoders.pooling import Reader, read_bundle
from louver.errors import OptionError
from louver.tasks import Batch, Classification, Splits
from louver.training.fit import Say
from louver.training.lesson import Lesson
from louver.training.options import TrainingOptions, suited
from louver.training.run import Run


class DistillOptions(TrainingOptions):
    """Settings of a distillation, beside those of any training."""

    layers: int | list[int]
    """Layers of the student: how many (spread evenly, last one included), or which."""
    temperature: float = Field(2.0, gt=0)
    """Softens the teacher's answers."""
    alpha: float = Field(0.5, ge=0, le=1)
    """Weight of the teacher's answers against the labels."""
    hidden: float = Field(0.0, ge=0)
    """Weight of matching the teacher's token states; runs the teacher in every step."""


def distill(
    teacher: Bundle | str | Path,
    data: Splits,
    *,
    into: str | Path,
    options: DistillOptions,
    metric_name: str | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Train a student of fewer layers on a teacher's answers and the labels.

    Args:
        teacher: a bundle of a classification, with transformers files.
        data: three disjoint parts; the teacher answers training once, test is not touched.
        into: directory of the new bundle.
        options: how to distil.
        metric_name: score that chooses the epoch; the kind's default if None.
        progress: show progress bars.
        say: told the score of every epoch.
        replace: write over an old bundle.

    Raises:
        OptionError: if the teacher is no classification, the student would be deeper, or nothing would be trained.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = teacher if isinstance(teacher, Bundle) else Bundle.open(teacher)
    if source.card.task != "classify" or source.card.kind is None or source.card.pooling in ("own", "mask"):
        raise OptionError(f"{source.path} has no classification of louver's; make one with 'louver finetune' first")
    if not options.epochs:
        raise OptionError("distill needs at least one epoch, got epochs=0: a head alone learns nothing from a teacher")
    options = suited(options, source, say)
    task = Classification(source.card.kind, tuple(source.card.labels))
    teacher_reader = read_bundle(source)
    chosen = choose_layers(options.layers, int(teacher_reader.encoder.config.num_hidden_layers))
    student = copy.deepcopy(teacher_reader)
    keep_layers(student.encoder, chosen)
    card = source.card.model_copy(update={"pattern": student.encoder.config.louver_pattern})
    run = Run("distill", source, Path(into), options, progress, say, began)
    lesson = Lesson.prepare(run, student, card, task, data, options, metric_name)
    teacher_reader.to(student.encoder.device)
    probed = lesson.probe()  # the teacher's head was made for layers that the student lacks
    for feature, answer in zip(lesson.train.rows, lesson.train.answers(teacher_reader), strict=True):
        feature["teacher"] = answer
    weights = lesson.class_weights()

    def objective(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
        return _student_loss(reader, teacher_reader, chosen, task, weights, options, batch)

    result = lesson.teach(objective, start=probed)
    return lesson.write(result, probe=probed, settings={"layers": chosen}, replace=replace)


def choose_layers(wanted: int | list[int], total: int) -> list[int]:
    """Return the teacher's layers that a student keeps.

    Args:
        wanted: how many, spread evenly with the last one included; or which.
        total: layers of the teacher.

    Raises:
        OptionError: if the student would be deeper than the teacher, or a layer does not exist.
    """
    if isinstance(wanted, list):
        if not wanted or min(wanted) < 0 or max(wanted) >= total:
            raise OptionError(f"student layers must be within 0…{total - 1}, got {wanted}")
        return sorted(set(wanted))
    if not 1 <= wanted <= total:
        raise OptionError(f"a student has 1 to {total} layers, as many as its teacher at most, got {wanted}")
    return [round((i + 1) * total / wanted) - 1 for i in range(wanted)]


def _student_loss(
    student: Reader,
    teacher: Reader,
    chosen: list[int],
    task: Classification,
    weights: Tensor | None,
    options: DistillOptions,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if not options.hidden:
        logits = student(ids, mask)
        extra = torch.zeros((), device=logits.device)
    else:
        logits, states = student.with_states(ids, mask)
        with torch.no_grad():
            _, expected = teacher.to(ids.device).with_states(ids, mask)
        real = mask[:, :, None].to(logits.dtype)
        gaps = [
            (((states[i + 1] - expected[layer + 1]) ** 2) * real).sum() / (real.sum() * states[0].shape[-1])
            for i, layer in enumerate(chosen)
        ]
        extra = torch.stack(gaps).mean()
    soft = soft_loss(logits.float(), batch["teacher"], task.kind, options.temperature)
    hard = task.loss(logits.float(), batch, weights)
    return options.alpha * soft + (1 - options.alpha) * hard + options.hidden * extra, logits


def soft_loss(logits: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    """Return the distance to the teacher's softened answers, times T² (Hinton et al. 2015, section 2).

    Args:
        logits: (batch, outputs) of the student.
        teacher: (batch, outputs) logits of the teacher.
        kind: "single" (Kullback-Leibler), "multi" (binary cross-entropy above the teacher's own entropy) or
            "regression" (squared error).
        temperature: T.
    """
    if kind == "regression":
        return F.mse_loss(logits, teacher)
    if kind == "single":
        student = F.log_softmax(logits / temperature, -1)
        expected = F.log_softmax(teacher / temperature, -1)
        return F.kl_div(student, expected, reduction="batchmean", log_target=True) * temperature**2
    chances = torch.sigmoid(teacher / temperature)
    cross = F.binary_cross_entropy_with_logits(logits / temperature, chances)
    entropy = F.binary_cross_entropy(chances, chances)
    return (cross - entropy) * temperature**2
