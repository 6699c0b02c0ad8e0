"""Two processes on gloo, started by the command line as a user would, end where one ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import colour_rows, small_bert, write_jsonl

from louver.encoders import extend
from louver.errors import MissingExtraError, OptionError
from louver.training.options import Schedule
from louver.training.processes import mean_over_all, spread
from louver.training.sharded import settings


def louver(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "louver", *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, minilm_l3: Path) -> Path:
    """An encoder without dropout: each process would draw its own."""
    directory = tmp_path_factory.mktemp("processes")
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    small_bert(directory / "model", minilm_l3, hidden_size=32, intermediate_size=64, **still)
    extend(directory / "model", into=directory / "base", max_length=256, pattern="window(8) | global(1)")
    # 80 rows to fine-tune on and 108 to pretrain on, so that batches come out even: accelerate fills up the last one
    parts = ["train"] * 80 + ["validation"] * 17 + ["test"] * 17
    rows = [{**row, "part": part} for row, part in zip(colour_rows(114), parts, strict=True)]
    write_jsonl(directory / "rows.jsonl", rows)
    return directory


def figures(home: Path, name: str, *arguments: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    common = ["--into", name, "--epochs", "1", "--max-length", "64", "--json", f"{name}.json"]
    done = louver(home, *arguments, *common)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("wrote ") == 1  # the first process alone speaks
    weights = load_file(home / name / "model.safetensors")
    return json.loads((home / f"{name}.json").read_text("utf8"))["numbers"], {k: v.numpy() for k, v in weights.items()}


def same(a: tuple[dict[str, Any], dict[str, np.ndarray]], b: tuple[dict[str, Any], dict[str, np.ndarray]]) -> None:
    losses = [np.asarray(one[0]["curves"]["loss"]) for one in (a, b)]
    assert len(losses[0]) >= 5
    assert np.abs(losses[0] - losses[1]).max() < 1e-4
    for name, weight in a[1].items():
        assert np.abs(weight - b[1][name]).max() < 1e-4, name


def test_two_processes_fine_tune_as_one(home: Path) -> None:
    task = ("finetune", "base", "rows.jsonl", "--split", "part")
    one = figures(home, "one", *task, "--batch-size", "16")
    two = figures(home, "two", *task, "--batch-size", "8", "--processes", "2")
    same(one, two)


def test_two_processes_pretrain_as_one_with_weights_whole_or_shared(home: Path) -> None:
    """Each has another number of hidden words in its share; the mean is over all of them."""
    task = ("pretrain", "base", "rows.jsonl", "--no-packing")
    one = figures(home, "pre1", *task, "--batch-size", "4")
    same(one, figures(home, "pre2", *task, "--batch-size", "2", "--processes", "2"))
    same(one, figures(home, "pre3", *task, "--batch-size", "2", "--processes", "2", "--sharding", "fsdp"))


def test_a_mistake_is_told_once_more_by_the_starter(home: Path) -> None:
    done = louver(home, "finetune", "base", "rows.jsonl", "--into", "x", "--label", "nolabel", "--processes", "2")
    assert done.returncode == 2
    assert "no column 'nolabel'" in done.stderr
    assert done.stderr.rstrip().endswith("of 2 failed; what it said stands above")


def test_what_cannot_be_spread() -> None:
    with pytest.raises(OptionError, match="processes must be positive, got 0; leave it out for one"):
        spread(0)
    assert spread(1) is False
    reader: Any = None
    assert settings(Schedule(), reader) == {}
    with pytest.raises(OptionError, match="sharding 'fsdp' spreads weights over processes; give two or more of them"):
        settings(Schedule(sharding="fsdp"), reader)


def test_deepspeed_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    reader: Any = None
    with pytest.raises(MissingExtraError, match="deepspeed not installed"):
        settings(Schedule(sharding="zero3"), reader)


def test_alone_a_mean_is_a_mean() -> None:
    assert mean_over_all(torch.tensor(6.0), 3).item() == 2
