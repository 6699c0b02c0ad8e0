"""`quantize`: an exported bundle in fewer bits, with the measured answer to whether it pays on this machine.

- int8: weights and products. onnxruntime's dynamic quantization scales activations by the whole batch, so an answer
  would depend on its neighbours; the card says so, and the runtime gives every text a call of its own.
- int8-weights: weights in blocks of 32 with a scale each, activations scaled by block: any batch gives the same answer.
- float16: half the bytes, for GPUs; a CPU turns it back into float32 as it reads.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from louver.bundle import Bundle, Golden, Record, write_card, writing
from louver.decode import flat
from louver.errors import OptionError, need_extra
from louver.export.onnx import save_sharing_weights
from louver.runtime.engine import OnnxEngine
from louver.runtime.predictor import Predictor
from louver.text import Tokenizer
from louver.versions import versions

TIMED_LENGTHS = (128, 512, 2048, 4096)


BLOCK = 32
"""Weights that share a scale in int8-weights."""
_FLOAT = ("ReduceSum", "ReduceMean", "ReduceL2", "Clip", "Div")
"""Stays in float32 beside float16: sums over thousands of tokens pass float16's 65,504, and 1e-9 is zero in it."""
_TOLERANCES = {"int8": 0.05, "int8-weights": 0.05, "float16": 0.01}
"""Instruction sets round products differently, so another machine may answer a little differently."""

Precision = Literal["int8", "int8-weights", "float16"]


class QuantizeOptions(BaseModel):
    """Settings of a quantization."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    precision: Precision = "int8"
    """Products and weights, weights alone, or half precision."""
    per_channel: bool = True
    """Of int8: one weight scale an output column instead of one a matrix."""
    reduce_range: bool = True
    """Of int8: keep weights to 7 bits: processors without VNNI add two products in 16 bits, which 8-bit weights
    overflow. On one of them the logits' correlation with float32 rose from 0.961 to 0.999. False only where VNNI is
    certain."""
    embeddings: bool = True
    """Store the embedding table in int8 too: most of a small model's size. Of float16 it is half as large anyway."""
    keep: Literal["if_faster", "always"] = "if_faster"
    """Of a recipe: refuse the step where it is measured to be no faster, or keep it for its size."""


def quantize(
    bundle: Bundle | str | Path,
    *,
    into: str | Path,
    options: QuantizeOptions | None = None,
    replace: bool = False,
) -> Bundle:
    """Write an exported bundle in int8, with int8 weights, or in float16.

    Args:
        bundle: what `louver.export` made, in float32.
        into: directory of the new bundle.
        options: how to quantize.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds speed against the float32 graphs by length, both sizes, and ``pays``.

    Raises:
        OptionError: if the bundle is not exported, or is not in float32.
    """
    need_extra("onnx", "onnxruntime")
    need_extra("train", "onnx")
    began = time.perf_counter()
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    if not source.card.onnx:
        raise OptionError(f"{source.path} is not exported; run 'louver export' first")
    if source.card.precision != "float32":
        raise OptionError(f"{source.path} is {source.card.precision} already; give the float32 bundle")
    options = options or QuantizeOptions()
    with writing(into, replace=replace) as draft:
        (draft / "onnx").mkdir()
        names = [graph["file"] for graph in source.card.onnx["graphs"]]
        models = [(draft / "onnx" / n, _smaller(source.path / "onnx" / n, draft, options)) for n in names]
        save_sharing_weights(models)
        for file in [*source.path.glob("tokenizer*"), source.path / "config.json"]:
            (draft / file.name).write_bytes(file.read_bytes())
        precision = options.precision
        card = source.card.model_copy(update={"precision": precision, "batch_invariant": precision != "int8"})
        small = Bundle(draft, card, "")
        engine = OnnxEngine(small, threads=1)
        vocabulary = Tokenizer.open(source.path).core.get_vocab_size()
        speed = _speed(OnnxEngine(source, threads=1), engine, source.card.max_length, vocabulary)
        sizes = {"size_before_mb": round(source.size() / 1e6, 2), "size_after_mb": round(small.size() / 1e6, 2)}
        record = Record(
            step="quantize",
            settings=options.model_dump(),
            parents=[source.digest],
            numbers={"speedup_by_length": speed, "pays": median(speed.values()) > 1.05, **sizes},
            seconds=time.perf_counter() - began,
            versions=versions(),
        )
        update = {"history": [*card.history, record], "golden": _golden(small, engine)}
        write_card(draft, card.model_copy(update=update))
    return Bundle.open(into, verify=False)


def _smaller(file: Path, scratch: Path, options: QuantizeOptions) -> Any:
    """Return one graph in fewer bits, with its weights inside."""
    import onnx

    model = onnx.load(str(file))
    if options.precision == "float16":
        return _half(model)
    with _quiet():
        if options.precision == "int8":
            products = ["MatMul", "Gemm"]
        else:
            products = []
            _block_weights(model)
        kinds = [*products, *(["Gather"] if options.embeddings else [])]
        return _dynamic(model, kinds, scratch / f"{file.stem}.int8.onnx", options) if kinds else model


def _half(model: Any) -> Any:
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    kept = [*DEFAULT_OP_BLOCK_LIST, *_FLOAT]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weights under float16's smallest number become that
        made = convert_float_to_float16(model, keep_io_types=True, op_block_list=kept)
    # it narrows what stands between two wide nodes, and a sum is infinite there: the second one takes it as it was
    casts = [node for node in made.graph.node if node.op_type == "Cast"]
    wide = {node.output[0]: node.input[0] for node in casts if node.name.endswith("_cast_to_fp16_node")}
    for node in casts:
        if node.attribute[0].i == onnx.TensorProto.FLOAT:
            node.input[0] = wide.get(node.input[0], node.input[0])
    return made


def _block_weights(model: Any) -> None:
    """Put products with constant weights into blocks of int8, with activations scaled by block as they come."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    how = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, accuracy_level=4, bits=8)
    MatMulNBitsQuantizer(model, algo_config=how).process()


def _dynamic(model: Any, kinds: list[str], target: Path, options: QuantizeOptions) -> Any:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        model,
        str(target),
        op_types_to_quantize=kinds,
        per_channel=options.per_channel,
        reduce_range=options.reduce_range and options.precision == "int8",
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )
    made = onnx.load(str(target))
    target.unlink()
    return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantizers advise a preprocessing that our graphs have had, and tell of every node."""
    loggers = [logging.getLogger(), logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _speed(before: OnnxEngine, after: OnnxEngine, longest: int, vocabulary: int, rounds: int = 5) -> dict[str, float]:
    """Time one text a call on one core, both graphs in turn, and return the ratio of medians by length."""
    rng = np.random.default_rng(0)
    ratios: dict[str, float] = {}
    for length in sorted({*(n for n in TIMED_LENGTHS if n <= longest), longest}):
        branch = next(i for i, b in enumerate(before.branches) if length <= b.limit)
        width = -(-length // before.branches[branch].multiple) * before.branches[branch].multiple
        ids = rng.integers(0, vocabulary, (1, width))
        times: dict[int, list[float]] = {0: [], 1: []}
        for turn in range(rounds + 1):
            for which, engine in enumerate((before, after)):
                began = time.perf_counter()
                engine.run(branch, ids, np.ones_like(ids), single=False)
                if turn:  # the first one warms up
                    times[which].append(time.perf_counter() - began)
        ratios[str(length)] = round(median(times[0]) / median(times[1]), 3)
    return ratios


def _golden(bundle: Bundle, engine: OnnxEngine) -> Golden | None:
    """Answer the golden texts anew: answers are close to the float32 ones, not equal."""
    if bundle.card.golden is None:
        return None
    texts = bundle.card.golden.texts
    with Predictor(bundle, engine=engine, truncation="head") as predictor:
        outputs = [
            [round(float(x), 6) for x in flat(row)[: len(old)]]
            for row, old in zip(predictor.logits(texts), bundle.card.golden.outputs, strict=True)
        ]
    return Golden(texts=texts, outputs=outputs, tolerance=_TOLERANCES[bundle.card.precision])
