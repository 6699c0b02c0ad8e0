from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import colour_rows
from torch.nn import functional as F

import louver
from louver.bundle import Bundle
from louver.compression import DistillOptions, QuantizeOptions, distill, quantize
from louver.compression.distill import choose_layers, soft_loss
from louver.errors import OptionError
from louver.tasks import Columns, make_splits, read_examples


@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_a_student_of_fewer_layers_learns(tuned: Bundle, colours: Path, tmp_path: Path, hidden: float) -> None:
    data = make_splits(read_examples(colours, Columns()))
    options = DistillOptions(layers=2, hidden=hidden, epochs=1, learning_rate=1e-3, max_length=64)
    student = distill(tuned, data, into=tmp_path / "s", options=options, progress=False)
    record = student.card.history[-1]
    assert record.settings["layers"] == [1, 2]
    assert record.parents == [tuned.digest]
    assert record.numbers["validation"]["accuracy"]["value"] > 0.8
    assert student.size() < tuned.size()
    with louver.Predictor(student) as predictor:
        assert predictor.predict(["red rose fire"])[0].label in student.card.labels


def test_a_student_reads_as_its_teacher_unless_told(tuned: Bundle, colours: Path, tmp_path: Path) -> None:
    """Class weights reach the labels' part of the loss, windows are joined, and the card says how texts are read."""
    data = make_splits(read_examples(colours, Columns()))
    taught = replace(tuned, card=tuned.card.model_copy(update={"truncation": "tail"}))
    quick: dict[str, Any] = {"layers": 1, "epochs": 1, "learning_rate": 1e-3, "max_length": 8}
    student = distill(taught, data, into=tmp_path / "a", options=DistillOptions(**quick), progress=False)
    assert student.card.truncation == "tail"
    options = DistillOptions(**quick, truncation="window", class_weights=True, alpha=0.0)
    student = distill(taught, data, into=tmp_path / "b", options=options, progress=False)
    assert student.card.truncation == "window"
    assert student.card.history[-1].numbers["validation"]["accuracy"]["value"] > 0.7


def test_choice_of_layers() -> None:
    assert [choose_layers(n, 6) for n in (1, 2, 3, 6)] == [[5], [2, 5], [1, 3, 5], [0, 1, 2, 3, 4, 5]]
    assert choose_layers([4, 0], 6) == [0, 4]
    with pytest.raises(OptionError, match="a student has 1 to 6 layers, as many as its teacher at most, got 7"):
        choose_layers(7, 6)
    with pytest.raises(OptionError, match=r"student layers must be within 0…5, got \[6\]"):
        choose_layers([6], 6)


def test_soft_losses_equal_their_definitions() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    assert soft_loss(student, teacher, "single", 2).item() == pytest.approx(
        4 * (p * (p / q).log()).sum(-1).mean().item(), rel=1e-5
    )
    p, q = (teacher / 2).sigmoid(), (student / 2).sigmoid()
    wanted = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    assert soft_loss(student, teacher, "multi", 2).item() == pytest.approx(4 * wanted.mean().item(), rel=1e-4)
    assert soft_loss(student, teacher, "regression", 2).item() == pytest.approx(F.mse_loss(student, teacher).item())
    assert all(
        soft_loss(teacher, teacher, kind, 2).item() == pytest.approx(0, abs=1e-6) for kind in ("single", "multi")
    )


def test_int8_is_small_close_and_says_what_it_is(exported: Bundle, int8: Bundle) -> None:
    assert int8.size() < 0.45 * exported.size()  # of a model this small, a third is the tokenizer
    assert (int8.card.precision, int8.card.batch_invariant) == ("int8", False)
    numbers = int8.card.history[-1].numbers
    assert set(numbers["speedup_by_length"]) == {"128", "512", "2048"}
    assert isinstance(numbers["pays"], bool)
    texts = [row["text"] for row in colour_rows(40, seed=9)]
    with louver.Predictor(exported) as before, louver.Predictor(int8) as after:
        a, b = before.logits(texts), after.logits(texts)
    assert (a.argmax(1) == b.argmax(1)).mean() >= 0.9
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.98


@pytest.mark.parametrize(("precision", "size"), [("int8-weights", 0.5), ("float16", 0.6)])
def test_fewer_bits_whose_answers_do_not_hang_on_the_batch(
    exported: Bundle, tmp_path: Path, precision: Any, size: float
) -> None:
    """Every branch, to the model's full length, where float16's sums would be infinite if they were not kept wide."""
    made = quantize(exported, into=tmp_path / "made", options=QuantizeOptions(precision=precision))
    assert (made.card.precision, made.card.batch_invariant) == (precision, True)
    assert made.size() < size * exported.size()
    texts = [*(row["text"] for row in colour_rows(30, seed=9)), "red rose fire " * 700, "sea " * 600]
    with louver.Predictor(exported) as before, louver.Predictor(made) as after:
        a, b = before.logits(texts), after.logits(texts)
        alone = np.concatenate([after.logits([text]) for text in texts])
    sure = np.diff(np.sort(a)[:, -2:]).ravel() > 0.1  # one text lies between two classes by 0.0002
    assert sure.mean() > 0.9
    assert (a.argmax(1) == b.argmax(1))[sure].all()
    assert b == pytest.approx(a, abs=(0.1 if precision == "int8-weights" else 0.005) * float(np.abs(a).max()))
    assert alone == pytest.approx(b, abs=1e-4 if precision == "int8-weights" else 5e-3)
    with pytest.raises(OptionError, match=f"is {precision} already; give the float32 bundle"):
        quantize(made, into=tmp_path / "again")


def test_float16_keeps_sums_wide(tmp_path: Path) -> None:
    """Mean pooling adds up 4,096 states: 40 times 4,096 is beyond float16."""
    import onnx
    import onnxruntime

    from louver.compression.quantize import _half

    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4096, 2])
    found = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    count = onnx.numpy_helper.from_array(np.array(4096.0, np.float32), "count")
    nodes = [
        onnx.helper.make_node("Add", ["x", "x"], ["twice"]),
        onnx.helper.make_node("ReduceSum", ["twice", "axes"], ["sum"], keepdims=0),
        onnx.helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [given], [found], [axes, count])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(_half(model).SerializeToString(), providers=["CPUExecutionProvider"])
    answer = session.run(None, {"x": np.full((1, 4096, 2), 20, np.float32)})[0]
    assert answer == pytest.approx(40)


def test_refusals(tuned: Bundle, int8: Bundle, long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not exported; run 'louver export' first"):
        quantize(tuned, into=tmp_path / "q")
    with pytest.raises(OptionError, match="is int8 already"):
        quantize(int8, into=tmp_path / "q")
    data = make_splits(read_examples(colours, Columns()))
    with pytest.raises(OptionError, match="has no classification"):
        distill(long_bundle, data, into=tmp_path / "q", options=DistillOptions(layers=1))
    with pytest.raises(OptionError, match="reads 2048 tokens, got max_length=4096; extend it first"):
        distill(tuned, data, into=tmp_path / "q", options=DistillOptions(layers=1, max_length=4096))
    with pytest.raises(OptionError, match="a student has 1 to 3 layers"):
        distill(tuned, data, into=tmp_path / "q", options=DistillOptions(layers=4))
