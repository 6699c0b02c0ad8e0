"""`quantize`: an exported bundle in int8, with the measured answer to whether it pays on this machine.

onnxruntime's dynamic quantization scales activations by the whole batch, so an answer would depend on its neighbours.
A bundle made here therefore says so on its card, and the runtime gives every text a call of its own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
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


class QuantizeOptions(BaseModel):
    """Settings of a quantization."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    per_channel: bool = True
    """One weight scale an output column instead of one a matrix."""
    reduce_range: bool = True
    """Keep weights to 7 bits: processors without VNNI add two products in 16 bits, which 8-bit weights overflow. On
    one of them the logits' correlation with float32 rose from 0.961 to 0.999. False only where VNNI is certain."""
    embeddings: bool = True
    """Store the embedding table in int8 too: most of a small model's size."""
    keep: Literal["if_faster", "always"] = "if_faster"
    """Of a recipe: refuse the step where int8 is measured to be no faster, or keep it for its size."""


def quantize(
    bundle: Bundle | str | Path,
    *,
    into: str | Path,
    options: QuantizeOptions | None = None,
    replace: bool = False,
) -> Bundle:
    """Write an exported bundle with int8 weights and dynamically scaled int8 products.

    Args:
        bundle: what `louver.export` made, in float32.
        into: directory of the new bundle.
        options: how to quantize.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds speed against the float32 graphs by length, both sizes, and ``pays``.

    Raises:
        OptionError: if the bundle is not exported, or is int8 already.
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
        models = [(draft / "onnx" / n, _quantized(source.path / "onnx" / n, draft, options)) for n in names]
        save_sharing_weights(models)
        for file in [*source.path.glob("tokenizer*"), source.path / "config.json"]:
            (draft / file.name).write_bytes(file.read_bytes())
        card = source.card.model_copy(update={"precision": "int8", "batch_invariant": False})
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


def _quantized(file: Path, scratch: Path, options: QuantizeOptions) -> Any:
    """Quantize one graph and return it with its weights inside."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = scratch / f"{file.stem}.int8.onnx"
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises a preprocessing that this graph has had
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            quantize_dynamic(
                onnx.load(str(file)),
                str(target),
                op_types_to_quantize=["MatMul", "Gemm", *(["Gather"] if options.embeddings else [])],
                per_channel=options.per_channel,
                reduce_range=options.reduce_range,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True},
            )
    finally:
        logger.setLevel(level)
    model = onnx.load(str(target))
    target.unlink()
    return model


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
    """Answer the golden texts anew: int8 answers are close to the float32 ones, not equal."""
    if bundle.card.golden is None:
        return None
    texts = bundle.card.golden.texts
    with Predictor(bundle, engine=engine, truncation="head") as predictor:
        outputs = [
            [round(float(x), 6) for x in flat(row)[: len(old)]]
            for row, old in zip(predictor.logits(texts), bundle.card.golden.outputs, strict=True)
        ]
    # instruction sets round int8 products differently, so another machine may answer a little differently
    return Golden(texts=texts, outputs=outputs, tolerance=0.05)
