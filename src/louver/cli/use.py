"""Commands that ask a bundle, or look into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from louver.cli.app import FAILED_ITEMS, command, out, save_json, say
from louver.cli.options import BundleDir, DataFile, EngineName, JsonFile, MetricName, Rows, Truncate, taking
from louver.cli.options import rows as rows_flags
from louver.errors import OptionError

TextOfTask = Annotated[
    str | None, typer.Option("--text", help="Column of the text: text, or question where answers are asked for.")
]
PairOfTask = Annotated[
    str | None, typer.Option("--pair", help="Column of a second text: pair, or context where answers are asked for.")
]


@command("louver predict runs/int8 texts.jsonl answers.jsonl")
def predict(
    bundle: BundleDir,
    source: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet file of texts, or a .txt file: one text.")],
    target: Annotated[
        Path | None, typer.Argument(help="File to write; JSON lines to standard output by default.")
    ] = None,
    text: TextOfTask = None,
    pair: PairOfTask = None,
    truncate: Truncate = None,
    chunk: Annotated[int, typer.Option(help="Rows held in memory, and grouped by length, at a time.")] = 256,
    threads: Annotated[int | None, typer.Option(help="Cores to use; all if left out.")] = None,
    engine: EngineName = None,
) -> None:
    """Answer every row; one that fails is written with its error, and the exit code is then 3.

    A target file gets the columns of the source too; standard output gets the answers alone.
    """
    from louver.runtime import Predictor
    from louver.runtime.files import predict_file

    with Predictor(bundle, truncation=truncate, threads=threads, engine=engine) as predictor:
        counts = predict_file(predictor, source, target, column=text, pair=pair, chunk=chunk)
    if counts.resumed:
        say(f"went on after {counts.resumed} rows of an interrupted run")
    say(f"rows: {counts.rows}, failed: {counts.failed}, not read to their end: {counts.cut}")
    if counts.left_out:
        say(f"not written, because the first rows lack them: {', '.join(counts.left_out)}; JSONL would take them")
    if counts.failed:
        raise typer.Exit(FAILED_ITEMS)


@command("louver evaluate runs/int8 test.jsonl --json figures.json")
def evaluate(
    bundle: BundleDir,
    data: DataFile,
    text: TextOfTask = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", help="Column of the label; of spans, of answers; of embeddings, of how alike a pair is."
        ),
    ] = None,
    pair: PairOfTask = None,
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
    """Score a bundle on labelled rows, all of them, with a bootstrap interval.

    Embeddings are scored on pairs: against people's scores, or without them by searching each text's partner.
    """
    from louver.bundle import Bundle
    from louver.measure.evaluate import evaluate as score
    from louver.tasks import Columns, read_examples

    opened = Bundle.open(bundle)
    if opened.card.task == "embed":
        from louver.measure.similarity import evaluate_pairs
        from louver.tasks.similar import read_similar

        for flag, given in (("--metric", metric), ("--baseline", baseline), ("--thresholds", thresholds)):
            if given:
                raise OptionError(f"{flag} {given!r} is for tasks with labels; leave it out for embeddings")
        rows = read_similar(data, text=text or "text", pair=pair or "pair", score=label)
        judged = evaluate_pairs(opened, rows, truncation=truncate)
        _say_score(bundle, judged.metric, judged.score.to_json() | judged.beside, json_file)
        return
    answers = None
    if baseline is not None:
        from louver.measure.baselines import Baseline

        length = max_length or opened.card.max_length
        answers = Baseline(opened, baseline, max_length=length, batch_size=batch_size)
    labels = "numbers" if opened.card.kind == "regression" else "names"
    if pair is None and opened.card.inputs == "pair" and opened.card.task == "classify":
        pair = "pair"
    columns = Columns.of(opened.card.task, text=text, label=label, pair=pair, labels=labels)
    examples = [example for example, _ in read_examples(data, columns, opened.card.task)]
    try:
        limits = [float(part) for part in thresholds.split(",")] if thresholds else None
    except ValueError:
        raise OptionError(f"--thresholds is a list of numbers, got {thresholds!r}; write 0.4,0.5") from None
    options: dict[str, Any] = {"truncation": truncate, "answers": answers, "thresholds": limits}
    found = score(opened, examples, metric_name=metric, **options)
    _say_score(bundle, found.metric, found.score.to_json(), json_file)


def _say_score(bundle: Path, metric: str, score: dict[str, Any], json_file: Path | None) -> None:
    figures = {"bundle": str(bundle), "metric": metric, "score": score}
    save_json(json_file, figures)
    out.print_json(json.dumps(figures))


@command('louver fill runs/mine "The sea is [MASK] today."')
def fill(
    bundle: BundleDir,
    text: Annotated[str, typer.Argument(help="A text with one or more masks, [MASK] or <mask>.")],
    top: Annotated[int, typer.Option(help="Guesses for each mask.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Guess the masked words of a text; for bundles that louver pretrain made."""
    from louver.encoders.words import Words

    (found,) = Words(bundle).fill([text], top=top)
    figures = [[guess._asdict() for guess in guesses] for guesses in found]
    save_json(json_file, figures)
    out.print_json(json.dumps(figures, ensure_ascii=False))


@command("louver doctor runs/tuned rows.csv --label team")
@taking(rows=rows_flags)
def doctor(
    bundle: BundleDir,
    rows: Rows,
    data: Annotated[
        Path | None, typer.Argument(help="The rows that it was trained on, for doubtful labels; split as then.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what is wrong with a bundle's training: what was seen while it ran, and which labels are doubtful."""
    from dataclasses import asdict

    from louver.training.doctor import examine

    found, doubts = examine(bundle, None if data is None else rows.splits(data))
    figures = {"found": [one.to_json() for one in found], "doubtful": [asdict(one) for one in doubts]}
    save_json(json_file, figures)
    for one in found:
        say(f"found: {one}")
    if not found:
        say("found nothing wrong")
    out.print_json(json.dumps(figures))


@command("louver check runs/int8")
def check(bundle: BundleDir, json_file: JsonFile = None) -> None:
    """Check every byte of a bundle, and replay its golden texts under today's versions."""
    from louver.runtime.replay import replay

    found = replay(bundle)
    save_json(json_file, found)
    out.print_json(json.dumps(found))


@command("louver info runs/int8")
def info(bundle: BundleDir, json_file: JsonFile = None) -> None:
    """Print a bundle's card: task, labels, pattern, history with figures."""
    from louver.bundle import Bundle

    found = Bundle.open(bundle)
    card = found.card.model_dump(mode="json", exclude={"golden"})
    figures = {"path": str(found.path), "digest": found.digest, "size_mb": round(found.size() / 1e6, 2), **card}
    save_json(json_file, figures)
    out.print_json(json.dumps(figures))
