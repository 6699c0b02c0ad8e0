"""`finetune`: teach a bundle a classification."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, manual_seed

from louver.bundle import Bundle, check_target
from louver.encoders.pooling import Pooling, Reader, read_bundle
from louver.tasks import Classification, Splits
from louver.training.features import Batch
from louver.training.fit import Say
from louver.training.lesson import Lesson
from louver.training.options import TrainingOptions


def finetune(
    bundle: Bundle | str | Path,
    data: Splits,
    *,
    into: str | Path,
    options: TrainingOptions | None = None,
    metric_name: str | None = None,
    pooling: Pooling | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Train a classification head and the encoder under it.

    Args:
        bundle: what `louver.extend` made, or any bundle with transformers files.
        data: three disjoint parts; thresholds and the best epoch are chosen on validation, test is not touched.
        into: directory of the new bundle.
        options: how to train.
        metric_name: score that chooses the epoch; the kind's default if None.
        pooling: "cls" or "mean"; the bundle's if None ("own" becomes "mean").
        progress: show progress bars.
        say: told the score of every epoch.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the validation score and every epoch's.

    Raises:
        DataError: if the labels do not make a classification.
        OptionError: if more tokens are asked for than the bundle reads, or the encoder cannot be checkpointed.
        TrainingError: if the loss stops being a number.
    """
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    options = options or TrainingOptions()
    task = Classification.of(data.train)
    chosen = pooling or ("mean" if source.card.pooling == "own" else source.card.pooling)
    card = source.card.model_copy(update={"pooling": chosen})
    reader = _with_new_head(source, chosen, task.outputs, options.seed)
    lesson = Lesson.prepare(source, reader, card, task, data, options, metric_name)
    probed = lesson.probe()
    weights = lesson.class_weights()

    def objective(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = reader(batch["input_ids"], batch["attention_mask"])
        return task.loss(logits.float(), batch["labels"], weights), logits

    result = lesson.teach(objective, start=probed, progress=progress, say=say)
    return lesson.write(result, into, step="finetune", probe=probed, replace=replace)


def _with_new_head(source: Bundle, pooling: Pooling, outputs: int, seed: int) -> Reader:
    """Take a bundle's encoder and put a new head on it."""
    old = read_bundle(source)
    encoder = old.encoder if source.card.pooling != "own" else old.encoder.base_model
    manual_seed(seed)
    return Reader(encoder, pooling, outputs)
