"""`export`: a bundle as ONNX graphs that run at every length, one a branch of its pattern, with one weight file.

Sparse graphs take a multiple of the attention block; the runtime pads its ids and the graph never shows it. Every graph
is held against torch before the bundle is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from louver.attention.choose import EXPORT_LIMIT, choose_for_export
from louver.attention.gathered import BLOCK
from louver.bundle import Bundle, Record, write_card, writing
from louver.encoders.plug import layer_patterns
from louver.encoders.pooling import Reader, read_bundle
from louver.errors import ModelError, OptionError, need_extra
from louver.patterns import ByLength, Pattern, Selector, holds, is_length_free, parse
from louver.runtime.engine import OnnxEngine
from louver.text import rectangle
from louver.versions import versions

OPSET = 20
TOLERANCE = 1e-4
WEIGHTS = "weights.bin"
CHECKED_LENGTHS = (1, 2, 127, 128, 129, 511, 512, 513, 700, 2048, 4096)
_SMALL = 1024
"""Bytes under which a tensor stays inside its graph: shapes and indices, which graph optimizers want to see."""


def export(bundle: Bundle | str | Path, *, into: str | Path, replace: bool = False) -> Bundle:
    """Write a bundle's serving files: graphs, one weight file, tokenizer, card.

    Args:
        bundle: a bundle with transformers files.
        into: directory of the new bundle.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the largest difference from torch by length.

    Raises:
        ModelError: if a graph differs from torch by more than 1e-4.
        OptionError: if the bundle is exported already, or a pattern depends on the length in its pairs.
    """
    need_extra("train", "onnx", "onnxscript")
    need_extra("onnx", "onnxruntime")
    began = time.perf_counter()
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    if source.card.onnx:
        raise OptionError(f"{source.path} is exported already; give the bundle that it was exported from")
    with writing(into, replace=replace) as draft:
        directory = draft / "onnx"
        directory.mkdir()
        graphs, models = [], []
        for limit, pattern in _branches(source):
            reader = read_bundle(source, pattern=pattern)
            multiple = BLOCK if _has_blocks(reader, limit) else 1
            name = f"up_to_{limit}.onnx"
            models.append((directory / name, _trace(reader, limit, multiple)))
            graphs.append({"file": name, "limit": limit, "multiple": multiple, "pattern": str(pattern)})
        save_sharing_weights(models)
        for file in [*source.path.glob("tokenizer*"), source.path / "config.json"]:
            (draft / file.name).write_bytes(file.read_bytes())
        card = source.card.model_copy(update={"onnx": {"opset": OPSET, "graphs": graphs, "weights": WEIGHTS}})
        numbers = _compare(source, Bundle(draft, card, ""))
        record = Record(
            step="export",
            settings={"opset": OPSET},
            parents=[source.digest],
            numbers=numbers,
            seconds=time.perf_counter() - began,
            versions=versions(),
        )
        write_card(draft, card.model_copy(update={"history": [*card.history, record]}))
    return Bundle.open(into, verify=False)


def _branches(source: Bundle) -> list[tuple[int, Pattern]]:
    """Return (tokens at most, pattern) for each graph."""
    pattern = parse(source.card.pattern)
    whole = source.card.max_length
    found = pattern.branches if isinstance(pattern, ByLength) else ((math.inf, pattern),)
    result = [(int(min(limit, whole)), branch) for limit, branch in found]
    for _, branch in result:
        if holds(branch, Selector):
            raise OptionError(f"{branch} chooses keys by content, which no graph of louver's does; serve it on torch")
        if not is_length_free(branch):
            raise OptionError(
                f"{branch} has other pairs at each length, so one graph cannot hold it; serve it on torch"
            )
        if holds(branch, ByLength):
            raise OptionError("by_length must be the outermost part of a pattern to be exported")
    # a branch that begins beyond the longest text is never used
    return [item for i, item in enumerate(result) if i == 0 or item[0] > result[i - 1][0]]


def _has_blocks(reader: Reader, limit: int) -> bool:
    return any(choose_for_export(p, limit).impl == "gathered" for p in layer_patterns(reader.encoder))


def _trace(reader: Reader, limit: int, multiple: int) -> Any:
    """Trace one graph for any batch size and any length up to the limit (any multiple of the block)."""
    batch = torch.export.Dim("batch", min=1, max=65536)
    if multiple == 1:
        tokens: Any = torch.export.Dim("tokens", min=1, max=limit)
    else:
        tokens = multiple * torch.export.Dim("blocks", min=1, max=-(-limit // multiple))
    example = torch.ones(2, 2 * multiple if multiple > 1 else min(limit, 16), dtype=torch.long)
    mask = example.clone()
    mask[1, -3:] = 0
    shapes = {"input_ids": {0: batch, 1: tokens}, "attention_mask": {0: batch, 1: tokens}}
    reading = EXPORT_LIMIT.set(limit)
    try:
        # the exporter prints progress and warns of its own internals
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _quiet_logs():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                reader,
                (example, mask),
                input_names=["input_ids", "attention_mask"],
                output_names=["output"],
                dynamic_shapes=shapes,
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
    finally:
        EXPORT_LIMIT.reset(reading)
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def _quiet_logs() -> Any:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def save_sharing_weights(models: list[tuple[Path, Any]]) -> None:
    """Save graphs of one directory so that equal tensors lie once, in one weight file.

    Args:
        models: (file, model proto); all files in one directory.
    """
    import onnx

    offsets: dict[str, tuple[int, int]] = {}
    directory = models[0][0].parent
    with (directory / WEIGHTS).open("wb") as stream:
        for file, model in models:
            for tensor in model.graph.initializer:
                data = onnx.numpy_helper.to_array(tensor)
                if data.nbytes < _SMALL:
                    continue
                raw = np.ascontiguousarray(data).tobytes()
                digest = hashlib.sha256(raw).hexdigest()
                if digest not in offsets:
                    stream.write(b"\0" * (-stream.tell() % 4096))  # aligned, so that it can be mapped
                    offsets[digest] = (stream.tell(), len(raw))
                    stream.write(raw)
                offset, length = offsets[digest]
                _refer(tensor, offset, length)
            _strip(model.graph)
            onnx.save_model(model, str(file))


def _strip(graph: Any) -> None:
    """Take out the exporter's notes on every node: they double the file and name paths of the exporting machine."""
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    graph.ClearField("doc_string")
    graph.ClearField("metadata_props")


def _refer(tensor: Any, offset: int, length: int) -> None:
    """Make a tensor a reference into the weight file."""
    import onnx

    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _compare(source: Bundle, exported: Bundle) -> dict[str, Any]:
    """Hold the graphs against torch at lengths around every edge, alone and in mixed batches."""
    engine = OnnxEngine(exported, threads=1)
    rng = np.random.default_rng(0)
    reader = read_bundle(source)
    vocabulary = int(reader.encoder.config.vocab_size)
    pad_id = int(reader.encoder.config.pad_token_id or 0)
    worst: dict[str, float] = {}
    lengths = sorted({*(n for n in CHECKED_LENGTHS if n <= source.card.max_length), source.card.max_length})
    for n in lengths:
        worst[str(n)] = _gap(reader, engine, [rng.integers(5, vocabulary, n)], pad_id)
    for branch, graph in enumerate(engine.branches):
        low = engine.branches[branch - 1].limit + 1 if branch else 1
        fitting = [n for n in lengths if low <= n <= graph.limit] or [int(low)]
        mixed = sorted({fitting[0], fitting[len(fitting) // 2], fitting[-1]})  # the ends, and one between
        rows = [rng.integers(5, vocabulary, n) for n in mixed]
        worst[f"mixed {', '.join(map(str, mixed))}"] = _gap(reader, engine, rows, pad_id)
    largest = float(np.max(list(worst.values())))
    if not largest <= TOLERANCE:
        raise ModelError(f"the exported graph differs from torch by {largest:.1e}, more than {TOLERANCE}: {worst}")
    return {"max_difference_from_torch": largest, "by_length": worst}


def _gap(reader: Reader, engine: OnnxEngine, rows: list[np.ndarray], pad_id: int) -> float:
    """Return |Δ| / (1 + max |output|) of one call against torch, text by text."""
    longest = max(len(row) for row in rows)
    branch = next(i for i, b in enumerate(engine.branches) if longest <= b.limit)
    multiple = engine.branches[branch].multiple
    width = -(-longest // multiple) * multiple
    ids, mask = rectangle(rows, pad_id, width)
    found = engine.run(branch, ids, mask, single=True)
    worst = 0.0
    for row, output in zip(rows, found, strict=True):
        alone = torch.from_numpy(row)[None]
        with torch.inference_mode():
            expected = reader(alone, torch.ones_like(alone))[0].numpy()
        real = output[: len(row)] if output.ndim == 2 else output
        gap = float(np.abs(real - expected).max() / (1 + np.abs(expected).max()))
        worst = float(np.maximum(worst, gap))  # keeps a NaN
    return worst
