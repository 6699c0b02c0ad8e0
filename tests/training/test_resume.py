"""An interrupted training goes on, and ends as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.conftest import colour_rows, write_jsonl

from louver.bundle import Bundle
from louver.decode import Span
from louver.errors import MissingExtraError, StorageError, TrainingError
from louver.storage import locked
from louver.tasks import Columns, make_splits, read_examples
from louver.tasks.data import objects
from louver.tasks.similar import Similar
from louver.training import ContrastOptions, PretrainingOptions, TrainingOptions, contrast, finetune, pretrain
from louver.training.learner import Learner
from louver.training.resume import fingerprint


class Killed(BaseException):
    """Like Ctrl-C, and unlike any error that somebody catches."""


def kill_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Learner.forward, [0]

    def forward(self: Learner, **batch: Any) -> Any:
        seen[0] += self.training
        if seen[0] > batches:
            raise Killed
        return real(self, **batch)

    monkeypatch.setattr(Learner, "forward", forward)


def interrupt(work: Callable[[], Bundle], monkeypatch: pytest.MonkeyPatch, after: int = 11) -> None:
    """Kill a training after some batches; an epoch here has 8 of them, or 7."""
    with monkeypatch.context() as patch:
        kill_after(after, patch)
        with pytest.raises(Killed):
            work()


def weights(bundle: Bundle) -> dict[str, np.ndarray]:
    return {
        f"{file.name}:{name}": array.numpy()
        for file in bundle.path.glob("*.safetensors")
        for name, array in load_file(file).items()
    }


def same(a: Bundle, b: Bundle) -> bool:
    mine, other = weights(a), weights(b)
    return mine.keys() == other.keys() and all(np.array_equal(mine[name], other[name]) for name in mine)


def train(kind: str, source: Bundle, colours: Path, into: Path, **options: Any) -> Bundle:
    shared: dict[str, Any] = {"epochs": 3, "batch_size": 16, "max_length": 32, "patience": 9, **options}
    if kind == "finetune":
        data = make_splits(read_examples(colours, Columns()))
        return finetune(source, data, into=into, options=TrainingOptions(**{"probe": False, **shared}), progress=False)
    texts = [row["text"] for row in colour_rows(120)]
    if kind == "domain":
        data, others = make_splits(read_examples(colours, Columns())), [f"south {text}" for text in texts]
        chosen = TrainingOptions(**{"probe": False, **shared})
        return finetune(source, data, into=into, options=chosen, domain=others, progress=False)
    if kind == "contrast":
        rows = [Similar((text,)) for text in dict.fromkeys(texts)]
        return contrast(source, rows, into=into, options=ContrastOptions(**shared), progress=False)
    return pretrain(source, texts, into=into, options=PretrainingOptions(**shared, packing=False), progress=False)


@pytest.mark.parametrize("kind", ["finetune", "domain", "pretrain", "contrast"])
@pytest.mark.parametrize("where", ["between epochs", "within an epoch"])
def test_resumed_equals_uninterrupted(
    kind: str, where: str, fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, dropout, masks and the order of rows included."""
    often = {"checkpoint_minutes": 1e-9} if where == "within an epoch" else {}
    whole = train(kind, fresh_bundle, colours, tmp_path / "whole" / "b", **often)
    interrupt(lambda: train(kind, fresh_bundle, colours, tmp_path / "b", **often), monkeypatch)
    assert not (tmp_path / "b").exists()
    assert (tmp_path / ".b.training").is_dir()
    resumed = train(kind, fresh_bundle, colours, tmp_path / "b", **often)
    assert same(whole, resumed)
    assert not (tmp_path / ".b.training").exists()
    scores = [[epoch["score"] for epoch in made.card.history[-1].numbers["epochs"]] for made in (whole, resumed)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 1, "learning_rate": 1e-9, "head_learning_rate": 1e-9, "epochs": 4},  # ends for want of progress
        {"accumulation": 3, "drop_edges": 0.5, "epochs": 2},  # 8 batches an epoch are two steps and a rest
    ],
)
def test_patience_seeds_and_curves_go_on_too(
    options: dict[str, Any], fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train("finetune", fresh_bundle, colours, tmp_path / "whole" / "b", **options)
    interrupt(lambda: train("finetune", fresh_bundle, colours, tmp_path / "b", **options), monkeypatch)
    resumed = train("finetune", fresh_bundle, colours, tmp_path / "b", **options)
    assert same(whole, resumed)
    numbers = [made.card.history[-1].numbers for made in (whole, resumed)]
    for name in ("steps", "epochs", "curves"):
        assert numbers[0][name] == numbers[1][name]


def test_other_validation_and_pooling_are_other_trainings(
    fresh_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Similar((text,)) for text in dict.fromkeys(row["text"] for row in colour_rows(120))]
    options = ContrastOptions(epochs=3, batch_size=16, max_length=32)

    def learn(sign: float, pooling: Any = "mean") -> Bundle:
        judges = [Similar((a, b), sign * i) for i, (a, b) in enumerate([("red", "rose"), ("sea", "sky"), ("a", "b")])]
        shared: dict[str, Any] = {"validation": judges, "options": options, "progress": False}
        return contrast(fresh_bundle, rows, into=tmp_path / "b", pooling=pooling, **shared)

    interrupt(lambda: learn(1.0), monkeypatch)
    with pytest.raises(TrainingError, match="holds an interrupted training with other settings"):
        learn(-1.0)
    with pytest.raises(TrainingError, match="holds an interrupted training with other settings"):
        learn(1.0, "cls")


def test_nothing_was_lost_before_the_first_checkpoint(
    fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So other settings may begin anew."""
    interrupt(lambda: train("finetune", fresh_bundle, colours, tmp_path / "b"), monkeypatch, after=3)
    assert (tmp_path / ".b.training").is_dir()
    train("finetune", fresh_bundle, colours, tmp_path / "b", epochs=1)


def test_the_same_seed_gives_the_same_bundle(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    first, second = (train("pretrain", fresh_bundle, colours, tmp_path / name, seed=3) for name in "ab")
    assert same(first, second)
    assert not same(first, train("pretrain", fresh_bundle, colours, tmp_path / "c", seed=4))


def test_other_settings_do_not_go_on_from_it(
    fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(lambda: train("finetune", fresh_bundle, colours, tmp_path / "b"), monkeypatch)
    with pytest.raises(TrainingError, match="holds an interrupted training with other settings, data or versions"):
        train("finetune", fresh_bundle, colours, tmp_path / "b", learning_rate=1e-3)


def test_two_trainings_of_one_bundle_do_not_mix(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    with locked(tmp_path / ".b.training"), pytest.raises(StorageError, match="is in use by another run; wait for it"):
        train("finetune", fresh_bundle, colours, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_other_labels_are_other_data(
    fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(lambda: train("finetune", fresh_bundle, colours, tmp_path / "b"), monkeypatch)
    rows = [json.loads(line) for line in colours.read_text("utf8").splitlines()]
    turned = [{**row, "label": {"red": "blue", "blue": "red"}.get(row["label"], "green")} for row in rows]
    other = write_jsonl(tmp_path / "other.jsonl", turned)
    with pytest.raises(TrainingError, match="holds an interrupted training with other settings, data or versions"):
        train("finetune", fresh_bundle, other, tmp_path / "b")


def test_a_training_that_cannot_go_on_leaves_nothing(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) at step"):
        train("finetune", fresh_bundle, colours, tmp_path / "b", learning_rate=1e30, head_learning_rate=1e30, warmup=0)
    assert not (tmp_path / ".b.training").exists()


def test_curves_for_tensorboard_lie_beside_the_bundle(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    train("finetune", fresh_bundle, colours, tmp_path / "b", epochs=1)
    (events,) = (tmp_path / "tensorboard" / "b").glob("events*")
    assert b"train/loss" in events.read_bytes()
    train("finetune", fresh_bundle, colours, tmp_path / "c", epochs=1, report=())
    assert not (tmp_path / "tensorboard" / "c").exists()
    with pytest.raises(MissingExtraError, match="wandb not installed; run: pip install wandb"):
        train("finetune", fresh_bundle, colours, tmp_path / "d", epochs=1, report=("wandb",))


def test_curves_stand_in_the_history(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    made = train("finetune", fresh_bundle, colours, tmp_path / "b")
    curves = made.card.history[-1].numbers["curves"]
    assert len(curves["loss"]) == len(curves["gradient_norm"]) == 24
    assert list(curves["gradient_by_part"]) == ["embeddings", "layer 0", "layer 1", "head"]
    assert json.loads(made.card.model_dump_json())


def test_fingerprints_go_by_contents() -> None:
    spans = [objects([(Span(0, 3, "a"),), ()]), objects([(Span(0, 3, "a"),), ()]), objects([(Span(0, 3, "b"),), ()])]
    found = [fingerprint({"rows": [np.arange(3)], "truth": one}) for one in spans]
    assert found[0] == found[1] != found[2]
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
