"""`finetune`: teach a bundle a classification."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from louver.bundle import Bundle, Card, Record, write_card, writing
from louver.encoders.extend import golden
from louver.encoders.pooling import Pooling, Reader, read_bundle
from louver.errors import OptionError
from louver.measure.intervals import score as score_with_interval
from louver.tasks import Classification, Splits, metric
from louver.text import Tokenizer
from louver.training.features import features
from louver.training.fit import Batch, answers, fit
from louver.training.options import TrainingOptions
from louver.training.probe import probe
from louver.versions import versions


def finetune(
    bundle: Bundle | str | Path,
    data: Splits,
    *,
    into: str | Path,
    options: TrainingOptions | None = None,
    metric_name: str | None = None,
    pooling: Pooling | None = None,
    progress: bool = True,
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
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the validation score and every epoch's.

    Raises:
        DataError: if the labels do not make a classification.
        TrainingError: if the loss stops being a number.
    """
    began = time.perf_counter()
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    options = options or TrainingOptions()
    task = Classification.of(data.train)
    name, scorer = metric(task.kind, metric_name)
    torch.manual_seed(options.seed)  # of the new head
    reader, card = _new_reader(source, task, pooling)
    max_length = options.max_length or card.max_length
    if max_length > card.max_length:
        raise OptionError(f"{source.path} reads {card.max_length} tokens, got max_length={max_length}; extend it first")
    tokenizer = Tokenizer.open(source.path)
    targets = {part: task.targets(data.part(part)) for part in ("train", "validation")}
    cut: dict[str, Any] = {"max_length": max_length, "truncation": options.truncation}
    train = features(data.train, targets["train"], tokenizer, card, **cut)
    # training may be cut to save time, but what is chosen is chosen on what will be read
    whole: dict[str, Any] = {"max_length": card.max_length, "truncation": _one(options.truncation)}
    validation = features(data.validation, targets["validation"], tokenizer, card, **whole)
    weights = torch.from_numpy(task.class_weights(data.train)) if options.class_weights and task.labels else None

    def objective(reader: Reader, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = reader(batch["input_ids"], batch["attention_mask"])
        return task.loss(logits.float(), batch["labels"], weights), logits

    truth = targets["validation"]
    probed = None
    if options.probe:
        rows = features(data.train, targets["train"], tokenizer, card, **whole)
        probed = probe(reader, task, rows, validation, truth, scorer, pad_id=tokenizer.pad_id)
    result = fit(
        reader,
        objective,
        train,
        validation,
        task.tuned_score(scorer),
        options,
        pad_id=tokenizer.pad_id,
        progress=progress,
    )
    logits = answers(reader, validation, tokenizer.pad_id)
    thresholds = task.tune_thresholds(logits, truth, scorer)
    found = score_with_interval(scorer, truth, task.decisions(logits, thresholds), seed=options.seed)
    card = card.model_copy(
        update={
            "task": "classify",
            "kind": task.kind,
            "labels": list(task.labels),
            "thresholds": thresholds,
            "truncation": options.truncation,
            "history": [
                *card.history,
                Record(
                    step="finetune",
                    settings={**options.model_dump(), "metric": name},
                    parents=[source.digest],
                    numbers={
                        "validation": {name: found.to_json()},
                        "probe": probed,
                        "epochs": result.history,
                        "n_train": len(data.train),
                        "steps": result.steps,
                    },
                    seconds=time.perf_counter() - began,
                    versions=versions(),
                ),
            ],
        }
    )
    return save(reader, tokenizer, card, source, into, replace=replace)


def save(
    reader: Reader, tokenizer: Tokenizer, card: Card, source: Bundle, into: str | Path, *, replace: bool = False
) -> Bundle:
    """Write a trained reader as a bundle, with the source's tokenizer files."""
    with writing(into, replace=replace) as draft:
        reader.cpu().save(draft)
        for file in source.path.glob("tokenizer*"):
            (draft / file.name).write_bytes(file.read_bytes())
        write_card(draft, card.model_copy(update={"golden": golden(reader, tokenizer, card)}))
    return Bundle.open(into, verify=False)


def _one(truncation: str) -> str:
    """Validation and the probe read one piece a text."""
    return "head" if truncation in ("window", "error") else truncation


def _new_reader(source: Bundle, task: Classification, pooling: Pooling | None) -> tuple[Reader, Card]:
    """Take a bundle's encoder and put a new head on it."""
    old = read_bundle(source)
    chosen = pooling or ("mean" if source.card.pooling == "own" else source.card.pooling)
    encoder = old.encoder if source.card.pooling != "own" else old.encoder.base_model
    return Reader(encoder, chosen, task.outputs), source.card.model_copy(update={"pooling": chosen})
