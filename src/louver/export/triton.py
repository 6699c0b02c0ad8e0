"""`to_triton`: an exported bundle as a model repository of NVIDIA's Triton inference server.

A model for each graph (a branch of lengths), and a client that chooses among them. Requests of equal length are batched
by the server; `client.py` needs tokenizers, numpy and tritonclient alone.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from louver.bundle import Bundle
from louver.errors import OptionError, need_extra
from louver.export.onnx import WEIGHTS
from louver.storage import storing

CLIENT = Path(__file__).with_name("triton_client.py")
_DELAY_US = 2000
"""How long Triton may wait for others to batch a request with."""


def to_triton(
    bundle: Bundle | str | Path,
    *,
    into: str | Path,
    name: str = "louver",
    ids: Literal["int64", "int32"] = "int64",
    gpu: bool = False,
    max_batch: int = 64,
) -> Path:
    """Write a model repository.

    Args:
        bundle: an exported bundle.
        into: directory of the repository; must not exist.
        name: of the model; a branch beyond the first has its limit behind it.
        ids: type of the inputs.
        gpu: run on GPUs, through TensorRT; on the CPU otherwise.
        max_batch: rows that Triton may put together.

    Returns:
        The repository.

    Raises:
        OptionError: if the bundle is not exported, or the target exists.
        StorageError: if it cannot be written.
    """
    need_extra("train", "onnx")
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    if not source.card.onnx:
        raise OptionError(f"{source.path} has no graphs; run 'louver export' first, and give what it wrote")
    if not source.card.batch_invariant:
        max_batch = 0  # each text alone, or its answer would depend on others
    home = Path(into)
    if home.exists():
        raise OptionError(f"{home} exists already; give another directory")
    graphs = source.card.onnx["graphs"]
    names = [name if number == 0 else f"{name}_{graph['limit']}" for number, graph in enumerate(graphs)]
    with storing(home):
        for model, graph in zip(names, graphs, strict=True):
            version = home / model / "1"
            version.mkdir(parents=True)
            dims = _graph(source.path / "onnx" / graph["file"], version / "model.onnx", ids)
            shutil.copyfile(source.path / "onnx" / WEIGHTS, version / WEIGHTS)
            (home / model / "config.pbtxt").write_text(config(model, dims, ids, gpu=gpu, max_batch=max_batch), "utf8")
        shutil.copyfile(source.path / "tokenizer.json", home / "tokenizer.json")
        shutil.copyfile(CLIENT, home / "client.py")
        (home / "client.json").write_text(json.dumps(_about(source, names, ids), indent=1) + "\n", "utf8")
    return home


def config(model: str, dims: list[int], ids: str, *, gpu: bool, max_batch: int) -> str:
    """Return a model's configuration in protobuf's text form.

    Args:
        model: its name.
        dims: of the output, without the batch; -1 for tokens.
        ids: type of the inputs.
        gpu: on GPUs through TensorRT.
        max_batch: rows at a time; 0 where the graph takes one request as it comes.
    """
    batch = [] if max_batch else [-1]  # without batching by the server the batch is a dimension like others
    lead = "".join(f"{one}, " for one in batch)
    inputs = ",\n".join(
        f'  {{ name: "{one}" data_type: TYPE_{ids.upper()} dims: [ {lead}-1 ] }}'
        for one in ("input_ids", "attention_mask")
    )
    output = f'  {{ name: "output" data_type: TYPE_FP32 dims: [ {", ".join(map(str, batch + dims))} ] }}'
    parts = [
        f'name: "{model}"',
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch}",
        f"input [\n{inputs}\n]",
        f"output [\n{output}\n]",
        f"instance_group [ {{ kind: {'KIND_GPU' if gpu else 'KIND_CPU'} count: 1 }} ]",
        "version_policy { latest { num_versions: 1 } }",
    ]
    if max_batch:
        parts.append(f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_US} }}")
    if gpu:
        settings = {"precision_mode": "FP16", "max_workspace_size_bytes": str(1 << 30)}
        lines = "".join(f'\n      parameters {{ key: "{key}" value: "{value}" }}' for key, value in settings.items())
        parts.append(
            "optimization { execution_accelerators {\n"
            f'    gpu_execution_accelerator : [ {{ name : "tensorrt"{lines}\n    }} ]\n'
            "} }"
        )
    return "\n".join(parts) + "\n"


def _graph(source: Path, target: Path, ids: str) -> list[int]:
    """Copy a graph, with inputs of the type that is wanted; return the dimensions of its output without the batch."""
    import onnx

    model: Any = onnx.load(str(source), load_external_data=False)
    if ids == "int32":
        casts = []
        for given in model.graph.input:
            inner = f"{given.name}_int64"
            for node in model.graph.node:
                node.input[:] = [inner if one == given.name else one for one in node.input]
            given.type.tensor_type.elem_type = onnx.TensorProto.INT32
            casts.append(onnx.helper.make_node("Cast", [given.name], [inner], to=onnx.TensorProto.INT64))
        nodes = [*casts, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    onnx.save_model(model, str(target))
    return [one.dim_value or -1 for one in model.graph.output[0].type.tensor_type.shape.dim[1:]]


def _about(source: Bundle, names: list[str], ids: str) -> dict[str, Any]:
    """Return what the client has to know."""
    from louver.text import Tokenizer

    card = source.card
    graphs = [
        {"model": name, "limit": graph["limit"], "multiple": graph["multiple"]}
        for name, graph in zip(names, card.onnx["graphs"], strict=True)
    ]
    about = {"graphs": graphs, "ids": ids, "max_length": card.max_length, "pad_id": Tokenizer.open(source.path).pad_id}
    return {**about, "task": card.task, "kind": card.kind, "labels": card.labels, "prompt": card.prompt}
