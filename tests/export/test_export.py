from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.encoders.test_plug import CONFIGS, build

import louver
from louver.bundle import Bundle
from louver.encoders import read_bundle
from louver.errors import OptionError
from louver.export import export
from louver.runtime.engine import OnnxEngine

LENGTHS = [1, 2, 127, 128, 129, 511, 512, 513, 700, 2048]


def run(bundle: Bundle, rows: list[np.ndarray], pad_id: int = 0) -> np.ndarray:
    engine = OnnxEngine(bundle, threads=1)
    longest = max(map(len, rows))
    branch = next(i for i, b in enumerate(engine.branches) if longest <= b.limit)
    width = -(-longest // engine.branches[branch].multiple) * engine.branches[branch].multiple
    ids = np.full((len(rows), width), pad_id, np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return engine.run(branch, ids, mask, single=True)


def expect(bundle: Bundle, rows: list[np.ndarray]) -> np.ndarray:
    reader = read_bundle(bundle)
    with torch.no_grad():
        ids = [torch.from_numpy(row)[None] for row in rows]
        return np.concatenate([reader(i, torch.ones_like(i)).numpy() for i in ids])


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / (1 + np.abs(expected).max()))


def test_every_length_equals_torch(tuned: Bundle, exported: Bundle) -> None:
    rng = np.random.default_rng(1)
    for length in LENGTHS:
        rows = [rng.integers(1000, 3000, length)]
        assert worst(run(exported, rows), expect(tuned, rows)) <= 1e-4, length


@pytest.mark.parametrize("lengths", [(1, 17, 64), (65, 129, 700), (200, 2048), (128, 128)])
def test_mixed_batches_equal_torch(tuned: Bundle, exported: Bundle, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    rows = [rng.integers(1000, 3000, n) for n in lengths]
    pattern = "full" if max(lengths) <= 64 else "window(8) | global(1)"
    reader = read_bundle(tuned, pattern=pattern)  # a batch runs in the graph of its longest text
    with torch.no_grad():
        ids = [torch.from_numpy(row)[None] for row in rows]
        expected = np.concatenate([reader(i, torch.ones_like(i)).numpy() for i in ids])
    assert worst(run(exported, rows), expected) <= 1e-4


def test_one_graph_a_branch_and_one_weight_file(exported: Bundle) -> None:
    graphs = exported.card.onnx["graphs"]
    assert [(g["limit"], g["multiple"], g["pattern"]) for g in graphs] == [
        (64, 1, "full"),
        (2048, 128, "window(8) | global(1)"),
    ]
    files = sorted(f.name for f in (exported.path / "onnx").iterdir())
    assert files == ["up_to_2048.onnx", "up_to_64.onnx", "weights.bin"]
    weights = (exported.path / "onnx" / "weights.bin").stat().st_size
    table = 30522 * 32 * 4
    assert table < weights < 1.5 * table  # the embedding table lies there once
    for graph in graphs:
        model = onnx.load(str(exported.path / "onnx" / graph["file"]), load_external_data=False)
        assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


def test_sparse_graphs_hold_no_square_tensor(exported: Bundle, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(exported.path / "onnx" / "up_to_2048.onnx"), options)
    ids = np.ones((1, 2048), np.int64)
    session.run(None, {"input_ids": ids, "attention_mask": ids})
    import json

    events = json.loads(Path(session.end_profiling()).read_text())
    shapes = [
        shape
        for event in events
        for entry in event.get("args", {}).get("output_type_shape", [])
        for shape in entry.values()
    ]
    assert max(int(np.prod(shape)) for shape in shapes) < 2048 * 2048


def test_history_has_the_measured_difference(exported: Bundle) -> None:
    numbers = exported.card.history[-1].numbers
    assert numbers["max_difference_from_torch"] <= 1e-4
    assert {"1", "127", "129", "2048", "mixed 1, 2", "mixed 127, 512, 2048"} <= set(numbers["by_length"])


def test_refusals(exported: Bundle, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is exported already"):
        export(exported, into=tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("random(8)", r"random\(8\) has other pairs at each length, so one graph cannot hold it"),
        ("topk(64)", r"topk\(64\) chooses keys by content, which no graph of louver's does; serve it on torch"),
    ],
)
def test_patterns_that_no_graph_holds_are_refused(pattern: str, message: str, tiny: Path, tmp_path: Path) -> None:
    bundle = louver.extend(tiny, into=tmp_path / "long", max_length=128, pattern=pattern)
    with pytest.raises(OptionError, match=message):
        export(bundle, into=tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("family", ["roberta", "albert", "distilbert", "modernbert"])
def test_other_families_export(family: str, tmp_path: Path, minilm_l3: Path) -> None:
    """RoBERTa counts positions over padding, ALBERT shares layers, ModernBERT brings its own windows."""
    model = build(family)
    source = tmp_path / "model"
    model.save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((minilm_l3 / name).read_bytes())
    model.resize_token_embeddings(30522, mean_resizing=False)
    model.save_pretrained(source)
    bundle = louver.extend(source, into=tmp_path / "long", max_length=1500, pattern="window(8) | global(1)")
    done = export(bundle, into=tmp_path / "onnx")
    assert done.card.history[-1].numbers["max_difference_from_torch"] <= 1e-4
    assert CONFIGS[family].model_type == family


def test_onnxruntime_fuses_what_it_can(exported: Bundle, tmp_path: Path) -> None:
    """Norms with what is added before them, and activations with their bias: the graphs are of the form it knows."""
    layers = json.loads((exported.path / "config.json").read_text("utf8"))["num_hidden_layers"]
    for graph in exported.card.onnx["graphs"]:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(exported.path / "onnx" / graph["file"]), options)
        kinds = [
            node.op_type for node in onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node
        ]
        assert kinds.count("SkipLayerNormalization") == 2 * layers
        assert kinds.count("BiasGelu") == layers
        assert not {"Erf", "Gelu", "ReduceMean"} & set(kinds)
