"""Commands that train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from louver.cli.app import command, done, say
from louver.cli.options import (
    BundleDir,
    DataFile,
    Into,
    JsonFile,
    MetricName,
    Rows,
    SegmentBy,
    TextColumn,
    TextsFile,
    segmenter,
    taking,
)
from louver.cli.options import rows as rows_flags
from louver.cli.options import schedule as schedule_flags
from louver.errors import OptionError, unknown

TruncateTraining = Annotated[
    str | None,
    typer.Option(
        "--truncate",
        help="What to do with longer texts, now and afterwards: head, tail, head_tail, middle, or window (read all); "
        "by default what the bundle does, or head where it refuses them.",
    ),
]
ClassWeights = Annotated[bool, typer.Option("--class-weights", help="Give every class the same say.")]


@command("louver pretrain runs/long corpus.jsonl --into runs/mine --epochs 3 --max-length 512")
@taking(schedule=schedule_flags)
def pretrain(
    bundle: BundleDir,
    data: TextsFile,
    into: Into,
    schedule: dict[str, Any],
    text: TextColumn = "text",
    unit: Annotated[str, typer.Option(help="What is hidden at a time: token, word or span.")] = "token",
    share: Annotated[float, typer.Option(help="Share of the tokens that is to be found.")] = 0.15,
    segment: SegmentBy = None,
    sentences: Annotated[
        str,
        typer.Option(help="A question beside: next (does the second part follow?) or order (is it after the first?)."),
    ] = "none",
    masked: Annotated[float, typer.Option(help="Of the hidden tokens, the share that becomes the mask.")] = 0.8,
    replaced: Annotated[float, typer.Option(help="Of the hidden tokens, the share that becomes another token.")] = 0.1,
    static_masks: Annotated[bool, typer.Option("--static-masks", help="The same in every epoch.")] = False,
    packing: Annotated[bool, typer.Option("--packing/--no-packing", help="Several short texts a row.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of split, masks and training.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Let a bundle's encoder find hidden words of your texts, before it is taught anything else."""
    from louver.text import read_texts
    from louver.training import PretrainingOptions
    from louver.training import pretrain as train

    masks: dict[str, Any] = {"unit": unit, "share": share, "masked": masked, "replaced": replaced}
    masks |= {"static_masks": static_masks, "packing": packing}
    options = PretrainingOptions(seed=seed, sentences=cast(Any, sentences), **masks, **schedule)
    shared: dict[str, Any] = {"segment": segmenter(segment), "progress": sys.stderr.isatty(), "say": say}
    done(train(bundle, read_texts(data, text), into=into, options=options, **shared), json_file)


@command("louver contrast runs/long texts.jsonl --into runs/embed --validation scored.jsonl --max-length 128")
@taking(schedule=schedule_flags)
def contrast(
    bundle: BundleDir,
    data: TextsFile,
    into: Into,
    schedule: dict[str, Any],
    text: TextColumn = "text",
    pair: Annotated[str | None, typer.Option("--pair", help="Column of a text that belongs to the first.")] = None,
    negative: Annotated[
        str | None, typer.Option("--negative", help="Column of a text that does not, or of a list of them.")
    ] = None,
    score: Annotated[str | None, typer.Option("--score", help="Column of how alike a pair is.")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="File of scored pairs (text, pair, label) that chooses the epoch.")
    ] = None,
    scale: Annotated[float, typer.Option(help="1 / temperature of the softmax over cosines.")] = 20.0,
    seed: Annotated[int, typer.Option("--seed", help="Of split, shuffle and training.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Teach a bundle embeddings: from texts alone (SimCSE), pairs, pairs with hard negatives, or scored pairs."""
    from louver.tasks.similar import read_similar
    from louver.training import ContrastOptions
    from louver.training import contrast as train

    options = ContrastOptions(scale=scale, seed=seed, **schedule)
    rows = read_similar(data, text=text, pair=pair, negative=negative, score=score)
    judges = None if validation is None else read_similar(validation, pair="pair", score="label")
    shared: dict[str, Any] = {"progress": sys.stderr.isatty(), "say": say}
    done(train(bundle, rows, into=into, validation=judges, options=options, **shared), json_file)


@command("louver finetune runs/long tickets.csv --into runs/tuned --label team --epochs 3")
@taking(rows=rows_flags, schedule=schedule_flags)
def finetune(
    bundle: BundleDir,
    data: DataFile,
    into: Into,
    rows: Rows,
    schedule: dict[str, Any],
    metric: MetricName = None,
    class_weights: ClassWeights = False,
    truncate: TruncateTraining = None,
    adversary: Annotated[
        str | None, typer.Option(help="Learn from the worst small change of the embeddings too: fgm or pgd.")
    ] = None,
    domain: Annotated[
        Path | None, typer.Option(help="File of texts of another kind, without labels, that the labels are to serve.")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="Train few weights beside the frozen encoder: lora, ia3, bottleneck or prompt."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Teach a bundle a task: labels or a number of texts or pairs, spans of texts, answers to questions."""
    from louver.encoders.adapters import KINDS
    from louver.text import read_texts
    from louver.training import AdapterOptions, TrainingOptions
    from louver.training import finetune as train

    against = cast(Any, adversary)
    options = TrainingOptions(
        seed=rows.seed, class_weights=class_weights, truncation=truncate, adversary=against, **schedule
    )
    shared: dict[str, Any] = {"metric_name": metric, "progress": sys.stderr.isatty(), "say": say}
    if domain is not None:
        shared["domain"] = list(read_texts(domain, rows.columns.text))
    if adapter is not None and adapter not in KINDS:
        raise OptionError(unknown("adapter", adapter, KINDS))
    chosen = None if adapter is None else AdapterOptions(kind=cast(Any, adapter))
    made = train(bundle, rows.splits(data), into=into, task=rows.task, options=options, adapter=chosen, **shared)
    done(made, json_file)


@command("louver attach runs/long runs/tuned/adapter --into runs/again")
def attach(
    bundle: BundleDir,
    adapter: Annotated[Path, typer.Argument(help="Directory adapter of a bundle that was trained with one.")],
    into: Into,
    json_file: JsonFile = None,
) -> None:
    """Put an adapter's small files and head onto the bundle that they were trained on."""
    from louver.training import attach as put

    done(put(bundle, adapter, into=into), json_file)


@command("louver distill runs/tuned tickets.csv --into runs/student --layers 3 --label team")
@taking(rows=rows_flags, schedule=schedule_flags)
def distill(
    teacher: BundleDir,
    data: DataFile,
    into: Into,
    layers: Annotated[str, typer.Option(help="How many, or which: 3, or 0,2,5.")],
    rows: Rows,
    schedule: dict[str, Any],
    metric: MetricName = None,
    class_weights: ClassWeights = False,
    temperature: Annotated[float, typer.Option(help="Softens the teacher's answers.")] = 2.0,
    alpha: Annotated[float, typer.Option(help="Weight of the teacher against the labels.")] = 0.5,
    hidden: Annotated[float, typer.Option(help="Weight of the teacher's token states.")] = 0.0,
    json_file: JsonFile = None,
) -> None:
    """Train a student of some of a bundle's layers on its answers."""
    from louver.compression import DistillOptions
    from louver.compression import distill as teach

    numbers = [int(part) for part in layers.split(",") if part.strip().isdigit()]
    if len(numbers) != len(layers.split(",")):
        raise OptionError(f"--layers is a number or a list of numbers, got {layers!r}; write 3 or 0,2,5")
    chosen = cast(Any, numbers if "," in layers else numbers[0])
    lessons: dict[str, Any] = {"temperature": temperature, "alpha": alpha, "hidden": hidden}
    options = DistillOptions(layers=chosen, seed=rows.seed, class_weights=class_weights, **lessons, **schedule)
    shared: dict[str, Any] = {"metric_name": metric, "progress": sys.stderr.isatty(), "say": say}
    done(teach(teacher, rows.splits(data), into=into, options=options, **shared), json_file)


@command('louver cloze runs/mine few.csv --into runs/few --template "{text} It was [MASK]." --words "yes=good no=bad"')
@taking(rows=rows_flags, schedule=schedule_flags)
def cloze(
    bundle: BundleDir,
    data: DataFile,
    into: Into,
    template: Annotated[str, typer.Option(help="A sentence with {text} and one mask in it.")],
    words: Annotated[str, typer.Option(help='Words for each label, each one token: "good=great,fine bad=poor".')],
    rows: Rows,
    schedule: dict[str, Any],
    json_file: JsonFile = None,
) -> None:
    """Answer labels by the word that fills a template: without examples, and with few."""
    from louver.training import Template
    from louver.training import cloze as train
    from louver.training.options import ClozeOptions

    pairs = [part.partition("=") for part in words.split()]
    if not pairs or not all(label and said for label, _, said in pairs):
        raise OptionError(f'--words wants label=word,word for each label, got {words!r}; write "good=great bad=poor"')
    said = {label: [word for word in found.split(",") if word] for label, _, found in pairs}
    options = ClozeOptions(seed=rows.seed, **schedule)
    shared: dict[str, Any] = {"progress": sys.stderr.isatty(), "say": say}
    done(train(bundle, rows.splits(data), Template(template, said), into=into, options=options, **shared), json_file)
