"""A model repository that Triton's own schema accepts, and a client that gets the Predictor's answers from it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tests.test_cli import call
from tritonclient.grpc import model_config_pb2

import louver
from louver.bundle import Bundle
from louver.errors import OptionError
from louver.export import to_triton


def configured(model: Path) -> Any:
    return text_format.Parse((model / "config.pbtxt").read_text("utf8"), model_config_pb2.ModelConfig())


def client_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the repository's client, with onnxruntime on the repository's files in the place of a server."""
    asked: list[str] = []

    class Server:
        def __init__(self, url: str) -> None:
            self.url = url

        def infer(self, model: str, given: list[Any]) -> Any:
            asked.append(model)
            wanted = configured(home / model)
            arrays = {}
            for one, told in zip(given, wanted.input, strict=True):
                kind = {"INT64": np.int64, "INT32": np.int32}[one.datatype()]
                assert (told.name, told.data_type) == (one.name(), getattr(model_config_pb2, f"TYPE_{one.datatype()}"))
                arrays[told.name] = np.frombuffer(one._get_binary_data(), kind).reshape(one.shape())
                assert len(told.dims) + (wanted.max_batch_size > 0) == arrays[told.name].ndim
            (found,) = onnxruntime.InferenceSession(str(home / model / "1/model.onnx")).run(None, arrays)
            dims = [None] * (found.ndim - len(wanted.output[0].dims)) + list(wanted.output[0].dims)
            assert all(told in (None, -1, real) for told, real in zip(dims, found.shape, strict=True))
            return type("Answer", (), {"as_numpy": lambda self, name: found})()

    spec = importlib.util.spec_from_file_location("repository_client", home / "client.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.triton, "InferenceServerClient", Server)
    found = module.Client("localhost:8000", home)
    found.asked = asked
    return found


@pytest.mark.parametrize("ids", ["int64", "int32"])
def test_the_client_gets_the_predictor_s_answers(
    ids: Any, exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = to_triton(exported, into=tmp_path / "repository", name="colours", ids=ids)
    client = client_of(home, monkeypatch)
    texts = ["rose ruby", "sky " * 700, "moss " * 5000]
    with louver.Predictor(exported, truncation="head") as predictor:
        for text, expected in zip(texts, predictor.predict(texts), strict=True):
            assert client.answer(text) == pytest.approx(expected.scores, abs=1e-5)
    assert len(set(client.asked)) == 2  # short ones and long ones have a graph each
    assert client.asked[0] == "colours"
    for model in set(client.asked):
        found = configured(home / model)
        assert found.name == model
        assert found.backend == "onnxruntime"
        assert found.max_batch_size == 64
        assert found.HasField("dynamic_batching")


def test_gpus_tokens_and_bundles_that_mind_their_neighbours(
    exported: Bundle, int8: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = configured(to_triton(exported, into=tmp_path / "gpu", gpu=True) / "louver")
    (accelerator,) = found.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP16"
    assert found.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    home = to_triton(int8, into=tmp_path / "int8")
    assert configured(home / "louver").max_batch_size == (64 if int8.card.batch_invariant else 0)
    assert client_of(home, monkeypatch).answer("rose ruby").keys() == {"red", "green", "blue"}


def test_repositories_that_cannot_be(exported: Bundle, tuned: Bundle, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has no graphs; run 'louver export' first"):
        to_triton(tuned, into=tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(OptionError, match="exists already; give another directory"):
        to_triton(exported, into=tmp_path / "b")
    code, _, err = call("export", exported.path, "--into", tmp_path / "c", "--to", "tritn")
    assert code == 2
    assert "did you mean 'triton'" in err
    code, _, err = call("export", exported.path, "--into", tmp_path / "c", "--to", "triton", "--ids", "int16")
    assert code == 2
    code, _, err = call("export", exported.path, "--into", tmp_path / "c", "--to", "triton", "--name", "m")
    assert code == 0
    assert json.loads((tmp_path / "c/client.json").read_text("utf8"))["graphs"][0]["model"] == "m"
    assert "torch" not in (tmp_path / "c/client.py").read_text("utf8")
