"""`finetune`: teach a bundle a task: a classification of texts or pairs, spans, answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, manual_seed

from louver.bundle import Bundle, check_target
from louver.encoders.adapters import LEARNING_RATES, AdapterOptions
from louver.encoders.pooling import Pooling, Reader, encoder_of, pooling_of, separator_of
from louver.errors import OptionError
from louver.tasks import Batch, Splits, Task, learn
from louver.training.adapting import Adapting
from louver.training.domain import Domains
from louver.training.fit import Say
from louver.training.lesson import Lesson
from louver.training.options import TrainingOptions, suited
from louver.training.run import Run
from louver.training.sharded import whole


def finetune(
    bundle: Bundle | str | Path,
    data: Splits,
    *,
    into: str | Path,
    task: str = "classify",
    options: TrainingOptions | None = None,
    adapter: AdapterOptions | None = None,
    domain: Sequence[object] | None = None,
    metric_name: str | None = None,
    pooling: Pooling | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Train a task's head and the encoder under it.

    Args:
        bundle: what `louver.extend` made, or any bundle with transformers files.
        data: three disjoint parts; thresholds and the best epoch are chosen on validation, test is not touched.
        into: directory of the new bundle.
        task: "classify" (one label, several labels or a number, of a text or a pair), "tag" or "answer".
        options: how to train.
        adapter: train few new weights beside the frozen encoder, and the head; None trains all of it. The bundle then
            holds the small files in ``adapter/``.
        domain: texts of another kind without labels, which the labels are to serve too (see `louver.training.domain`).
        metric_name: score that chooses the epoch; the kind's default if None.
        pooling: "cls" or "mean"; the bundle's if None ("own" becomes "mean"). Spans and answers have none.
        progress: show progress bars.
        say: told the score of every epoch.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the validation score and every epoch's.

    Raises:
        DataError: if the labels do not make the task.
        OptionError: if more tokens are asked for than the bundle reads, or the encoder cannot be checkpointed.
        TrainingError: if the loss stops being a number.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    learned = learn(task, data.train)
    options = _fitting(options or TrainingOptions(), learned, adapter, source, say)
    chosen = pooling_of(source.card, pooling)
    if learned.per_token:
        chosen = "none"
    card = source.card.model_copy(update={"pooling": chosen})
    reader = _with_new_head(source, chosen, learned.outputs, options.seed, paired=bool(data.train[0].pair))
    adapting = None
    if adapter is not None:
        whole(options, "an adapter")
        adapting = Adapting(reader, adapter, source)
    run = Run("finetune", source, Path(into), options, progress, say, began)
    lesson = Lesson.prepare(run, reader, card, learned, data, options, metric_name, adapting)
    probed = lesson.probe()
    weights = lesson.class_weights()

    def objective(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = reader(batch["input_ids"], batch["attention_mask"])
        return learned.loss(logits.float(), batch, weights), logits

    if domain is not None:
        other = Domains(lesson, domain, lesson.options.domain_weight)
        result = lesson.teach(other.objective(learned, weights), start=probed, train=other.rows, also=other.head)
    else:
        result = lesson.teach(objective, start=probed)
    return lesson.write(result, probe=probed, replace=replace)


def _fitting(
    options: TrainingOptions, task: Task, adapter: AdapterOptions | None, source: Bundle, say: Say
) -> TrainingOptions:
    """Give new weights, and a head that no probe begins, a learning rate of their own."""
    if adapter is not None and "learning_rate" not in options.model_fields_set:
        options = options.model_copy(update={"learning_rate": LEARNING_RATES[adapter.kind]})
    options = suited(options, source, say)
    if not task.per_token:
        return options
    if not options.epochs:
        raise OptionError("epochs 0 leaves the linear probe, which spans and answers do not have; give 1 or more")
    rate = options.head_learning_rate if "head_learning_rate" in options.model_fields_set else 1e-3
    return options.model_copy(update={"probe": False, "head_learning_rate": rate})


def _with_new_head(source: Bundle, pooling: Pooling, outputs: int, seed: int, *, paired: bool) -> Reader:
    """Take a bundle's encoder and put a new head on it."""
    encoder = encoder_of(source)
    manual_seed(seed)
    return Reader(encoder, pooling, outputs, separator=separator_of(source.path, encoder) if paired else None)
