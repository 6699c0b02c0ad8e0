"""Flags that several commands have, and how a command takes a whole set of them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from louver.errors import MissingExtraError, OptionError, unknown

if TYPE_CHECKING:
    from louver.tasks import Columns, Splits

Into = Annotated[Path, typer.Option("--into", help="Directory of the new bundle.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
BundleDir = Annotated[Path, typer.Argument(help="Directory of a bundle, or of a run: its last accepted bundle.")]
DataFile = Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file, or a datasets directory.")]
TextsFile = Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file; its labels are not read.")]
TextColumn = Annotated[str, typer.Option("--text", help="Column of the text.")]
MetricName = Annotated[str | None, typer.Option("--metric", help="The kind's default if left out.")]
SegmentBy = Annotated[
    str | None,
    typer.Option("--segment", help="Cut Chinese texts into words by jieba; by the tokenizer if left out."),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="What computes: onnxruntime or openvino for an exported bundle, torch for another; louver bench engines "
        "tells which is faster here.",
    ),
]
Truncate = Annotated[
    str | None,
    typer.Option(
        "--truncate",
        help="What to do with a text that is too long: error (refuse it), head, tail, head_tail or middle (keep that "
        "part), window (read all of it in windows). The bundle's own by default; louver info shows it.",
    ),
]


def segmenter(name: str | None) -> Callable[[str], list[str]] | None:
    """Return the function that cuts a text into words.

    Raises:
        OptionError: if it is unknown.
        MissingExtraError: if its package is not installed.
    """
    if name is None:
        return None
    if name != "jieba":
        raise OptionError(unknown("segmenter", name, ["jieba"]))
    if importlib.util.find_spec("jieba") is None:
        raise MissingExtraError("jieba not installed; run: pip install jieba")
    found: Callable[[str], list[str]] = importlib.import_module("jieba").lcut
    return found


@dataclass(frozen=True)
class Rows:
    """Labelled rows as a command line names them."""

    task: str
    columns: Columns
    drop: str
    seed: int

    def splits(self, data: Path) -> Splits:
        """Read the rows and split them."""
        from louver.tasks import make_splits, read_examples

        columns = self.columns
        if columns.group and columns.date:
            raise OptionError(f"--group {columns.group} and --date {columns.date} split in two ways; give one of them")
        by: Any = "group" if columns.group else "date" if columns.date else "random"
        dropped = [word for word in self.drop.split(",") if word]
        return make_splits(read_examples(data, columns, self.task), seed=self.seed, by=by, drop=dropped)


def rows(
    task: Annotated[
        str,
        typer.Option("--task", help="classify (labels or a number, of a text or a pair), tag (spans) or answer."),
    ] = "classify",
    text: Annotated[str | None, typer.Option("--text", help="Column of the text; of answer: question.")] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Column of the label; of tag: spans, of answer: answers.")
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", help="Column of the second text; of answer: context.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Column that names train, validation and test.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column whose values stay in one part.")] = None,
    date: Annotated[str | None, typer.Option("--date", help="Column to split by in time.")] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="What labels are: auto, names or numbers.")] = None,
    drop: Annotated[str, typer.Option("--drop", help="Faults to drop: duplicates,empty,rare,unseen.")] = "",
    seed: Annotated[int, typer.Option("--seed", help="Of split, shuffle and training.")] = 0,
) -> Rows:
    """Take the flags that say what rows hold."""
    from louver.tasks import Columns

    named = {"text": text, "label": label, "pair": pair, "split": split, "group": group, "date": date, "labels": labels}
    return Rows(task, Columns.of(task, **named), drop, seed)


def schedule(
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Passes over the training texts at most; 0: a head alone, of texts.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Texts (rows of packed texts) a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Of the encoder.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", help="Tokens to train on; the bundle's if left out. The probe reads all."),
    ] = None,
    accumulation: Annotated[int | None, typer.Option("--accumulation", help="Batches a step.")] = None,
    processes: Annotated[int, typer.Option("--processes", help="That train together; one a GPU.")] = 1,
    sharding: Annotated[
        str | None, typer.Option("--sharding", help="How processes hold weights: none (DDP), fsdp or zero3.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Of products: auto, float32, bf16, or fp16 on GPUs.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", help="Epochs without a better score after which training stops.")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option("--warmup", help="Share of the steps in which the learning rate rises.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", help="Of matrices.")] = None,
    max_gradient: Annotated[float | None, typer.Option("--max-gradient", help="Norm to clip gradients to.")] = None,
    drop_edges: Annotated[
        float | None, typer.Option("--drop-edges", help="Share of each layer's pairs that a batch keeps.")
    ] = None,
    sparse_advice: Annotated[
        bool | None,
        typer.Option(
            "--sparse-advice/--no-sparse-advice",
            help="Under a sparse pattern, three quarters of the default learning rate, and half as much warm-up more.",
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", help="Where curves go too: tensorboard,wandb,mlflow, or none.")
    ] = None,
) -> dict[str, Any]:
    """Take the flags of any training; those that were left out have the defaults of the kind of training.

    Several processes run the whole command again, each; this one ends when they have.
    """
    if processes != 1:
        from louver.training.processes import spread

        if spread(processes):
            raise typer.Exit
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "accumulation": accumulation,
        "sharding": sharding,
        "gradient_checkpointing": gradient_checkpointing or None,
        "precision": precision,
        "patience": patience,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "max_gradient": max_gradient,
        "drop_edges": drop_edges,
        "sparse_advice": sparse_advice,
        "report": None if report is None else tuple(name for name in report.split(",") if name and name != "none"),
    }
    return {name: value for name, value in given.items() if value is not None}


def taking(**sets: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of other functions; each one's result comes in the argument of its name.

    Args:
        sets: by the command's argument, the function that takes the flags.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def joined(**given: Any) -> None:
            for name, function in sets.items():
                mine = {flag: given.pop(flag) for flag in inspect.signature(function).parameters}
                given[name] = function(**mine)
            command(**given)

        parameters: list[inspect.Parameter] = []
        hints: dict[str, Any] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            source = sets.get(name)
            hints |= get_type_hints(source or command, include_extras=True)
            parameters += inspect.signature(source).parameters.values() if source else [parameter]
        typed = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        joined.__signature__ = inspect.Signature(typed)  # type: ignore[attr-defined]
        joined.__annotations__ = {p.name: p.annotation for p in typed}
        joined.__name__, joined.__doc__, joined.__module__ = command.__name__, command.__doc__, command.__module__
        return joined

    return add
