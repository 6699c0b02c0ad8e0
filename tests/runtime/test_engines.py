"""Every engine that runs a bundle gives the same answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import write_jsonl
from tests.runtime.test_runtime import mixed
from tests.test_cli import call

import louver
from louver.bundle import Bundle
from louver.errors import BundleError, MissingExtraError, OptionError
from louver.measure.engines import race_engines
from louver.runtime.engine import engine_of, open_engine


@pytest.mark.parametrize("which", ["exported", "int8"])
def test_openvino_answers_as_onnxruntime(which: str, request: pytest.FixtureRequest) -> None:
    """Alone and together, short and long: every branch, and lengths that came before come again."""
    bundle: Bundle = request.getfixturevalue(which)
    texts = [*mixed(24), "red " * 1500, "sea", "sky " * 700]
    with louver.Predictor(bundle) as first, louver.Predictor(bundle, engine="openvino") as second:
        expected, found = first.logits(texts), second.logits(texts)
        alone = np.concatenate([second.logits([text]) for text in texts])
        assert np.array_equal(second.logits(texts), found)
    near = 1e-4 if which == "exported" else 0.1  # int8 rounds by the whole call, and each engine in its own way
    assert found == pytest.approx(expected, abs=near)
    assert alone == pytest.approx(found, abs=near)


def test_openvinos_first_calls_may_come_from_two_threads_at_once(exported: Bundle) -> None:
    """They waited for each other for ever; threads that change places often meet there in two starts of three."""
    program = (
        "import faulthandler, sys, louver\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "sys.setswitchinterval(1e-6)\n"
        "louver.Predictor(sys.argv[1], engine='openvino', threads=2, max_tokens=64).logits(['red sky ' * 20] * 8)\n"
    )
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", program, str(exported.path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_which_engine_runs_what(exported: Bundle, tuned: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of(exported) == "onnxruntime"
    assert engine_of(tuned) == "torch"
    with pytest.raises(OptionError, match="unknown engine 'onnxrun'; did you mean 'onnxruntime'"):
        open_engine(exported, 1, "onnxrun")
    with pytest.raises(OptionError, match=r"is exported, and engine 'torch' does not run that; give onnxruntime or"):
        louver.Predictor(exported, engine="torch")
    with pytest.raises(OptionError, match=r"is not exported, and engine 'openvino' does not run that; give torch"):
        louver.Predictor(tuned, engine="openvino")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"openvino not installed; run: pip install 'louver\[openvino\]'"):
        open_engine(exported, 1, "openvino")


def test_a_race_of_engines(exported: Bundle, tmp_path: Path) -> None:
    found = race_engines(exported, mixed(8), threads=1, rounds=1)
    assert {one.engine for one in found} == {"onnxruntime", "openvino"}
    assert found[0].texts_per_s >= found[1].texts_per_s > 0
    assert max(one.difference for one in found) < 1e-4
    with pytest.raises(OptionError, match="a race needs texts"):
        race_engines(exported, [])
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in mixed(8)])
    target = tmp_path / "found.json"
    wanted = ["--texts", rows, "--rows", 4, "--rounds", 1, "--threads", 1, "--json", target]
    code, out, _ = call("bench", "engines", exported.path, *wanted)
    assert code == 0
    assert "texts/s" in out
    assert {one["engine"] for one in json.loads(target.read_text("utf8"))} == {"onnxruntime", "openvino"}
    code, _, err = call("predict", exported.path, rows, tmp_path / "out.jsonl", "--engine", "openvin")
    assert code == 2
    assert "did you mean 'openvino'" in err


def test_memory_of_openvino_does_not_grow_with_shapes(exported: Bundle) -> None:
    """Its cache of kernels is for as many shapes as we say."""
    code = f"""
import numpy as np, psutil
from louver.bundle import Bundle
from louver.runtime.engine import open_engine
engine = open_engine(Bundle.open({str(exported.path)!r}), 1, "openvino")
rng = np.random.default_rng(0)
for batch in range(1200):
    ids = rng.integers(5, 900, (int(rng.integers(1, 17)), int(rng.integers(2, 65))))
    engine.run(0, ids, np.ones_like(ids), single=False)
    if batch in (599, 1199):
        print(psutil.Process().memory_info().rss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late <= early * 1.1


def test_a_bundle_without_files_runs_on_nothing(tuned: Bundle, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match="holds neither ONNX graphs nor safetensors"):
        engine_of(Bundle(tmp_path / "empty", tuned.card, ""))
