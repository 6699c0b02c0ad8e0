"""Planted faults, one a diagnosis: each is named, and a healthy run has none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import WORDS, colour_rows, write_jsonl

from louver.bundle import Bundle
from louver.encoders import Reader, read_bundle
from louver.encoders.plug import layers_of
from louver.errors import OptionError, TrainingError
from louver.tasks import Classification, Columns, Example, Features, Splits, make_splits, read_examples
from louver.text import Tokenizer
from louver.training import TrainingOptions, finetune
from louver.training.diagnosis import of_curves, of_start, of_vectors, priors
from louver.training.doctor import doubtful_labels, examine
from louver.training.fit import fit
from louver.training.judgement import Judgement
from louver.training.learner import Learner
from louver.training.watch import Log

Rows = list[dict[str, str]]


def names(bundle: Bundle) -> set[str]:
    return {one.name for one in examine(bundle)[0]}


def split(path: Path, rows: Rows) -> Splits:
    found = read_examples(write_jsonl(path / "rows.jsonl", rows), Columns())
    return make_splits(found, shares=(0.3, 0.2), drop=["duplicates"])


def trained(bundle: Bundle, rows: Rows, home: Path, **options: Any) -> Bundle:
    chosen = TrainingOptions(**{"epochs": 4, "batch_size": 8, "learning_rate": 1e-3, "max_length": 64, **options})
    return finetune(bundle, split(home, rows), into=home / "b", options=chosen, progress=False)


def healthy(count: int = 200) -> Rows:
    return colour_rows(count)


def randomly(rows: Rows, share: float) -> Rows:
    """Give a share of the rows another label."""
    rng = random.Random(0)
    other = {"red": "blue", "blue": "green", "green": "red"}
    return [{**row, "label": other[row["label"]]} if rng.random() < share else row for row in rows]


def uneven() -> Rows:
    """Texts of two lengths, so mixed that batches hold both."""
    rows = healthy(40)
    return [{**row, "text": row["text"] if i % 5 else f"{row['text']} " * 4} for i, row in enumerate(rows)]


def rare() -> Rows:
    """A class whose few texts look like another's."""
    rng, rows = random.Random(0), [row for row in healthy(240) if row["label"] != "green"]
    rows += [{"text": " ".join(rng.choices(WORDS["red"].split(), k=12)), "label": "rare"} for _ in range(24)]
    return rows


PLANTED: dict[str, tuple[Callable[[], Rows], dict[str, Any]]] = {
    "loss does not fall": (healthy, {"learning_rate": 1e-9, "head_learning_rate": 1e-9, "probe": False}),
    "divergence": (healthy, {"learning_rate": 0.3, "head_learning_rate": 0.3, "warmup": 0}),
    "over-fitting": (
        lambda: randomly(colour_rows(90, words=9), 0.45),
        {"epochs": 14, "patience": 14, "learning_rate": 3e-3},
    ),
    "label noise": (lambda: randomly(colour_rows(600), 0.2), {"epochs": 2}),
    "dead classes": (rare, {"epochs": 1}),
    "truncated evidence": (lambda: [{**r, "text": r["text"] * 90} for r in healthy(60)], {"epochs": 1}),
    "special tokens in texts": (lambda: [{**r, "text": f"{r['text']} [SEP]"} for r in healthy(60)], {"epochs": 1}),
    "unknown tokens": (lambda: [{**r, "text": f"{r['text']} 吖嗄"} for r in healthy(60)], {"epochs": 1}),
    "padding": (uneven, {"epochs": 2, "batch_size": 32}),
}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_named(name: str, fresh_bundle: Bundle, tmp_path: Path) -> None:
    rows, options = PLANTED[name]
    bundle = trained(fresh_bundle, rows(), tmp_path, **options)
    assert name in names(bundle)
    (finding,) = [one for one in examine(bundle)[0] if one.name == name]
    assert finding.remedy
    assert any(character.isdigit() for character in finding.evidence) or name == "dead classes"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_healthy_run_has_none(seed: int, fresh_bundle: Bundle, tmp_path: Path) -> None:
    assert names(trained(fresh_bundle, healthy(), tmp_path, seed=seed)) == set()


def log_of(bundle: Bundle, change: Callable[[Reader], float]) -> Log:
    """Train a reader that a function has spoilt; what the function returns is a factor of the loss."""
    torch.manual_seed(0)
    reader = Reader(read_bundle(bundle).encoder, "mean", 3)
    factor = change(reader)
    examples = [Example(row["text"], row["label"]) for row in healthy(96)]
    task = Classification.of(examples)
    tokenizer = Tokenizer.open(bundle.path)
    rows = Features.of(examples, task, tokenizer, bundle.card, max_length=64, truncation="head").rows

    def objective(one: Reader, batch: Any) -> Any:
        outputs = one(batch["input_ids"], batch["attention_mask"])
        return task.loss(outputs, batch) * factor, outputs

    options = TrainingOptions(epochs=2, batch_size=8, learning_rate=1e-4)
    return fit(reader, objective, rows, lambda _: Judgement(0.0, np.empty(0)), options, progress=False).log


def test_exploding_gradients(fresh_bundle: Bundle) -> None:
    found = of_curves(log_of(fresh_bundle, lambda _: 1e4), [])
    assert "exploding gradients" in {one.name for one in found}


def test_vanishing_gradients(fresh_bundle: Bundle) -> None:
    def cut(reader: Reader) -> float:
        """Let the states of the first layer through, and hardly any of their gradient back."""

        def faint(module: Any, given: Any, states: torch.Tensor) -> torch.Tensor:
            return states.detach() + 1e-5 * (states - states.detach())

        layers_of(reader.encoder)[0].register_forward_hook(faint)
        return 1.0

    found = of_curves(log_of(fresh_bundle, cut), [])
    (finding,) = [one for one in found if one.name == "vanishing gradients"]
    assert finding.evidence.startswith("layer 0 gets")
    assert of_curves(log_of(fresh_bundle, lambda _: 1.0), []) == []


def test_collapsed_embeddings(fresh_bundle: Bundle) -> None:
    rng = np.random.default_rng(0)
    assert of_vectors(rng.normal(size=(32, 16))) == []
    (finding,) = of_vectors(np.ones((32, 16)) + 1e-3 * rng.normal(size=(32, 16)))
    assert finding.name == "collapsed embeddings"


def test_no_numbers_are_traced_to_layer_and_batch(fresh_bundle: Bundle) -> None:
    reader = Reader(read_bundle(fresh_bundle).encoder, "mean", 2)
    task = Classification("single", ("a", "b"))
    learner = Learner(
        reader, lambda r, b: (task.loss(r(b["input_ids"], b["attention_mask"]), b), torch.zeros(1)), TrainingOptions()
    ).train()
    batch = {
        "input_ids": torch.tensor([[101, 3000, 102], [101, 3001, 102]]),
        "attention_mask": torch.ones(2, 3, dtype=torch.long),
        "labels": torch.tensor([0, 1]),
        "row": torch.tensor([7, 12]),
    }
    learner(**batch)
    spoilt = layers_of(reader.encoder)[1].get_submodule("intermediate.dense")

    def spoil(module: Any, given: Any, output: torch.Tensor) -> torch.Tensor:
        return output * float("inf")

    hook = spoilt.register_forward_hook(spoil)
    with pytest.raises(
        TrainingError,
        match=r"loss is nan at step 2 \(first in the output of encoder.encoder.layer.1.intermediate.dense, "
        r"batch of 2 rows, texts \[7, 12\]\)",
    ):
        learner(**batch)
    hook.remove()
    with torch.no_grad():
        reader.encoder.get_parameter("embeddings.LayerNorm.weight").fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"the weights encoder.embeddings.LayerNorm.weight are no numbers since"):
        learner(**batch)


def test_the_doctor_lists_doubtful_labels(fresh_bundle: Bundle, tmp_path: Path) -> None:
    """Those that were changed, the surest first, and no others."""
    rows = colour_rows(300)
    wrong = randomly(rows, 0.05)
    changed = {b["text"] for a, b in zip(rows, wrong, strict=True) if a["label"] != b["label"]}
    bundle = trained(fresh_bundle, wrong, tmp_path, epochs=2)
    data = split(tmp_path, wrong)
    found, doubts = examine(bundle, data)
    seen = {example.text for example in [*data.validation, *data.test]}
    assert {doubt.text for doubt in doubts} == changed & seen
    assert all(doubt.label != doubt.answer for doubt in doubts)
    assert "label noise" not in {one.name for one in found}  # few


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
def test_hard_texts_are_no_label_noise(scale: float) -> None:
    """A model that is wrong in a quarter of the answers, however sure it says it is; and the same with wrong labels."""
    rng = np.random.default_rng(0)
    alarms = {0.0: 0, 0.2: 0}
    for _ in range(40):
        truth = rng.integers(0, 2, 600)
        margins = np.where(truth == 1, 1, -1) * rng.normal(0.7, 1.0, 600) * scale
        logits = np.stack([np.zeros(600), margins], 1)
        for share in alarms:
            labels = np.where(rng.random(600) < share, 1 - truth, truth)
            examples = [Example("text", "ab"[label]) for label in labels]
            alarms[share] += bool(doubtful_labels(Classification("single", ("a", "b")), examples, logits)[1])
    assert alarms[0.0] <= 2
    assert alarms[0.2] >= 32 or scale == 0.3  # a model that is sure of nothing lists no rows


def test_guessing_costs_what_the_weights_make_of_it() -> None:
    """The least loss of one answer to all texts, found by trying."""
    rng = np.random.default_rng(0)
    single = (rng.random(1000) < 0.1).astype(np.int64)
    several = (rng.random((1000, 2)) < [0.1, 0.4]).astype(np.float32)
    one, both = Classification("single", ("a", "b")), Classification("multi", ("a", "b"))
    weights = np.asarray([0.55, 5.0], np.float32)
    cases: list[Any] = [(one, single, weights), (both, several, weights), (one, single, None)]
    for task, truth, given in cases:
        assert priors(task, truth, given) == pytest.approx(_least(task, truth, given), abs=1e-3)


def _least(task: Classification, truth: np.ndarray, weights: np.ndarray | None) -> float:
    given = None if weights is None else torch.from_numpy(weights)
    answer = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([answer], max_iter=200)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = task.loss(answer.expand(len(truth), 2), {"labels": torch.from_numpy(truth)}, given)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(loss().detach())


def test_what_was_not_trained_has_no_diagnosis(fresh_bundle: Bundle) -> None:
    with pytest.raises(OptionError, match="was not trained by this louver; its history has no step that was watched"):
        examine(fresh_bundle)


@pytest.mark.parametrize("steps", [20, 60, 400])
def test_noise_is_no_divergence(steps: int) -> None:
    """Losses of batches of one or two texts, flat or falling: an alarm in one run of thirty at most."""
    rng = np.random.default_rng(0)
    alarms = 0
    for run in range(200):
        trend = 1.0 if run % 2 else np.linspace(1, 0.3, steps)
        log = Log(losses=(trend * rng.gamma(1.5, 1 / 1.5, steps)).tolist())
        alarms += any(one.name == "divergence" for one in of_curves(log, [], prior=1.0))
    assert alarms <= 6


def test_a_training_that_gains_nothing_says_so() -> None:
    start: dict[str, float] = {"epoch": 0.0, "score": -2.0}
    (finding,) = of_start([start, {"epoch": 1.0, "score": -2.5, "loss": 1.0}])
    assert "the start scored -2 on validation and the best epoch -2.5" in str(finding)
    for score in (-1.9, -2.0):  # of equals, the epoch is kept
        assert of_start([start, {"epoch": 1.0, "score": score, "loss": 1.0}]) == []
