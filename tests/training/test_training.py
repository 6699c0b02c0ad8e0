from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.conftest import colour_rows, write_jsonl

import louver
from louver.bundle import Bundle
from louver.compression import DistillOptions, distill
from louver.encoders import read_bundle
from louver.encoders.plug import drop_edges
from louver.errors import BundleError, OptionError, StorageError, TextError, TrainingError
from louver.tasks import Classification, Columns, Example, Features, Splits, collate, make_splits, read_examples
from louver.text import Tokenizer
from louver.training import TrainingOptions, finetune
from louver.training.fit import _apart
from louver.training.learner import Learner
from louver.training.options import suited
from louver.training.probe import probe

QUICK: dict[str, Any] = {"learning_rate": 1e-3, "max_length": 64, "batch_size": 16}


def splits(colours: Path) -> Splits:
    return make_splits(read_examples(colours, Columns()))


def test_it_learns_and_says_how(tuned: Bundle) -> None:
    record = tuned.card.history[-1]
    assert (record.step, tuned.card.kind, tuned.card.labels) == ("finetune", "single", ["blue", "green", "red"])
    assert record.numbers["validation"]["accuracy"]["value"] >= 0.9
    assert [entry["epoch"] for entry in record.numbers["epochs"]] == [0.0, 1.0]
    assert record.parents


def test_an_epoch_is_scored_on_its_own_labels(long_bundle: Bundle, tmp_path: Path) -> None:
    """Texts of many lengths: the Trainer evaluates them in another order than they were given."""
    rows = [row for i in range(150) for row in colour_rows(1, seed=i, words=3 + i % 40)]
    data = make_splits(read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns()))
    options = TrainingOptions(epochs=4, probe=False, head_learning_rate=1e-2, **QUICK)
    bundle = finetune(long_bundle, data, into=tmp_path / "b", options=options, progress=False)
    numbers = bundle.card.history[-1].numbers
    best = max(entry["score"] for entry in numbers["epochs"])
    assert best > 0.6  # a third would be chance
    assert numbers["validation"]["accuracy"]["value"] == pytest.approx(best, abs=1e-3)


def test_same_seed_same_model(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    data = splits(colours)
    made = [
        finetune(
            long_bundle,
            data,
            into=tmp_path / name,
            options=TrainingOptions(epochs=1, seed=seed, probe=False, **QUICK),
            progress=False,
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    states = [read_bundle(bundle).state_dict() for bundle in made]
    same = [all(torch.equal(states[0][k], states[i][k]) for k in states[0]) for i in (1, 2)]
    assert same == [True, False]


def test_accumulation_equals_the_larger_batch(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    """Dropout would differ, so the comparison runs without."""
    data = splits(colours)
    data = Splits(data.train[:64], data.validation, data.test)
    found = []
    for name, batch, accumulation in (("a", 16, 1), ("b", 8, 2)):
        options = TrainingOptions(
            epochs=1, batch_size=batch, accumulation=accumulation, learning_rate=1e-3, max_length=64, patience=9
        )
        source = read_bundle(long_bundle)
        assert source.encoder.config.hidden_dropout_prob == pytest.approx(0.1)
        bundle = finetune(long_bundle, data, into=tmp_path / name, options=options, progress=False)
        found.append(bundle.card.history[-1].numbers["steps"])
    assert found == [4, 4]


def test_several_labels(long_bundle: Bundle, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for i in range(0, 240, 2):
        one, two = colour_rows(2, seed=i, words=6)
        rows.append({"text": f"{one['text']} {two['text']}", "label": [one["label"], two["label"]]})
    data = make_splits(read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns()))
    options = TrainingOptions(epochs=1, **QUICK)
    bundle = finetune(long_bundle, data, into=tmp_path / "b", options=options, progress=False)
    assert (bundle.card.kind, len(bundle.card.thresholds)) == ("multi", 3)
    assert bundle.card.history[-1].numbers["validation"]["exact_match"]["value"] > 0.5


def test_a_number(long_bundle: Bundle, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for i in range(200):
        reds = i % 9
        rows.append({"text": " ".join([*["rose"] * reds, *["sea"] * (8 - reds), str(i)]), "label": reds / 8})
    data = make_splits(read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns()))
    options = TrainingOptions(epochs=1, **QUICK)
    bundle = finetune(long_bundle, data, into=tmp_path / "b", options=options, progress=False)
    assert (bundle.card.kind, bundle.card.labels) == ("regression", [])
    assert bundle.card.history[-1].numbers["validation"]["r2"]["value"] > 0.8
    with louver.Predictor(bundle) as predictor:
        low, high = predictor.predict(["sea sea sea sea sea sea sea sea", "rose rose rose rose rose rose rose rose"])
    assert low.value is not None
    assert high.value is not None
    assert low.value < high.value


def test_the_best_epoch_is_kept_even_if_it_is_the_probe(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    """A ruinous learning rate must not leave a ruined model."""
    options = TrainingOptions(epochs=1, learning_rate=0.5, head_learning_rate=0.5, max_length=64)
    bundle = finetune(long_bundle, splits(colours), into=tmp_path / "b", options=options, progress=False)
    numbers = bundle.card.history[-1].numbers
    assert numbers["epochs"][0]["score"] > numbers["epochs"][1]["score"]
    assert numbers["validation"]["accuracy"]["value"] == pytest.approx(numbers["epochs"][0]["score"], abs=1e-3)


def test_labels_that_say_nothing_and_classes_that_are_missing(tuned: Bundle, colours: Path, tmp_path: Path) -> None:
    """A label in every row, and a student's data without one of its teacher's classes."""
    rows = [{"text": row["text"], "label": ["text", row["label"]]} for row in colour_rows(120)]
    data = make_splits(read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns()))
    bundle = finetune(tuned, data, into=tmp_path / "b", options=TrainingOptions(epochs=0), progress=False)
    assert bundle.card.labels == ["blue", "green", "red", "text"]
    with louver.Predictor(bundle) as predictor:
        assert all("text" in (found.labels or ()) for found in predictor.predict(["rose fire", "moss"]))
    for kept in (("blue", "red"), ("blue",)):
        some = [e for e in splits(colours).train if e.label in kept]
        few = Splits(some, some, some)
        options = DistillOptions(layers=2, epochs=1, max_length=64)
        student = distill(tuned, few, into=tmp_path / "-".join(kept), options=options, progress=False)
        assert student.card.labels == ["blue", "green", "red"]
        assert student.card.history[-1].numbers["validation"]["accuracy"]["value"] > 0.8


def test_probe_equals_its_own_linear_model(long_bundle: Bundle, colours: Path) -> None:
    from louver.encoders import Reader
    from louver.tasks import metric

    data = splits(colours)
    task = Classification.of(data.train)
    reader = Reader(read_bundle(long_bundle).encoder, "mean", task.outputs)
    tokenizer = Tokenizer.open(long_bundle.path)
    truth = {name: task.targets(getattr(data, name)) for name in ("train", "validation")}
    rows = {
        name: Features.of(getattr(data, name), task, tokenizer, long_bundle.card, max_length=64, truncation="head")
        for name in truth
    }
    _, scorer = metric("single")
    found = probe(reader, task, rows["train"], rows["validation"], truth["validation"], scorer)
    logits = rows["validation"].logits(reader)
    assert scorer(truth["validation"], logits.argmax(-1)) == pytest.approx(found.score, abs=1e-4)
    assert np.abs(logits - found.logits).max() < 1e-3


def test_features_are_cut_as_at_serving(tuned: Bundle) -> None:
    """Windows too: their answers are joined as the Predictor joins them."""
    tokenizer = Tokenizer.open(tuned.path)
    one = [Example("rose sea leaf " * 40, "red"), Example("moss", "green")]
    target = Classification("single", ("blue", "green", "red"))
    cut = Features.of(one, target, tokenizer, tuned.card, max_length=12, truncation="head")
    assert [len(f["input_ids"]) for f in cut.rows] == [12, 3]
    windows = Features.of(one, target, tokenizer, tuned.card, max_length=12, truncation="window")
    assert [len(f["input_ids"]) for f in windows.rows] == [12] * 12 + [3]
    assert windows.labels.tolist() == [2] * 12 + [1]
    small = replace(tuned, card=tuned.card.model_copy(update={"max_length": 12}))
    with louver.Predictor(small, truncation="window") as predictor:
        expected = predictor.logits([e.text for e in one])
    assert np.abs(windows.logits(read_bundle(tuned)) - expected).max() < 1e-5
    with pytest.raises(TextError, match="reads 12 tokens and the text has"):
        Features.of(one, target, tokenizer, tuned.card, max_length=12, truncation="error")


def test_collation_pads_and_stacks() -> None:
    batch = collate(7)([{"input_ids": np.array([1, 2, 3]), "labels": 1}, {"input_ids": np.array([4]), "labels": 0}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]


def test_a_loss_that_is_no_number_stops_training_with_its_step(
    long_bundle: Bundle, colours: Path, tmp_path: Path
) -> None:
    reader = read_bundle(long_bundle)
    learner = Learner(
        reader, lambda r, b: (torch.tensor(float("nan")), torch.zeros(1)), TrainingOptions(accumulation=2)
    ).train()
    with pytest.raises(
        TrainingError, match=r"loss is nan at step 1 \(first in the loss, batch of 1 rows\): lower the learning rate"
    ):
        learner(input_ids=torch.ones(1, 2), attention_mask=torch.ones(1, 2))
    options = TrainingOptions(epochs=2, learning_rate=1e30, head_learning_rate=1e30, max_length=64, warmup=0)
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) at step"):
        finetune(long_bundle, splits(colours), into=tmp_path / "b", options=options, progress=False)
    assert not (tmp_path / "b").exists()


def test_no_number_late_keeps_the_best_epoch(
    fresh_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss breaks in the third epoch: the bundle is that of the best before, and says so."""
    real, said = Learner.forward, list[str]()

    def forward(self: Learner, **batch: Any) -> Any:
        if self.training and self.batches == 17:
            self.objective = lambda *_: (torch.tensor(float("nan"), requires_grad=True), torch.zeros(1))
        return real(self, **batch)

    options = TrainingOptions(epochs=4, probe=False, head_learning_rate=1e-2, **QUICK)
    monkeypatch.setattr(Learner, "forward", forward)
    broken = finetune(
        fresh_bundle, splits(colours), into=tmp_path / "b", options=options, progress=False, say=said.append
    )
    numbers = broken.card.history[-1].numbers
    assert [entry["epoch"] for entry in numbers["epochs"]] == [1.0, 2.0]
    assert numbers["validation"]["accuracy"]["value"] == max(entry["score"] for entry in numbers["epochs"])
    (finding,) = [one for one in numbers["diagnosis"] if one["name"] == "no number"]
    assert finding["evidence"].startswith("loss is nan at step 18 (first in the loss")
    assert any("the best epoch before is kept" in line for line in said)
    assert not (tmp_path / ".b.training").exists()


def test_the_bundle_s_way_with_long_texts_is_kept(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    """It was "head" after any training before."""
    data = splits(colours)
    asked = ["window", None, "tail", None]  # first None: the bundle's; a bundle that refuses is cut at the end
    kept, bundle = [], fresh_bundle
    for number, truncation in enumerate([None, *asked]):
        options = TrainingOptions(epochs=0, truncation=truncation, **QUICK)
        bundle = finetune(bundle, data, into=tmp_path / f"{number}", options=options, progress=False)
        kept.append(bundle.card.truncation)
    assert kept == ["head", "window", "window", "tail", "tail"]


def test_rows_that_share_a_text_wait_for_another_batch() -> None:
    rng = np.random.default_rng(0)
    keys = [{int(k) for k in rng.integers(0, 200, 2)} for _ in range(300)]
    for order in (rng.permutation(300).tolist(), list(range(300))):
        found = _apart(order, keys, 16)
        assert sorted(found) == sorted(order)  # none is lost
        batches = [found[i : i + 16] for i in range(0, 300, 16)]
        twice = [sum(len(keys[i]) for i in batch) > len(set().union(*(keys[i] for i in batch))) for batch in batches]
        assert not any(twice[:-2])
    assert sorted(_apart(list(range(9)), [{0}] * 9, 4)) == list(range(9))  # where all share one, they stand together
    assert _apart([2, 0, 1], [{0}, {1}, {2}], 2) == [2, 0, 1]


def test_a_target_that_exists_is_refused_before_any_work(
    long_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("louver.training.lesson.Lesson.prepare", lambda *_: pytest.fail("work began"))
    (tmp_path / "there").mkdir()
    with pytest.raises(BundleError, match="there exists; choose another directory"):
        finetune(long_bundle, splits(colours), into=tmp_path / "there")
    with pytest.raises(BundleError, match="there exists; choose another directory"):
        distill(long_bundle, splits(colours), into=tmp_path / "there", options=DistillOptions(layers=1))
    with pytest.raises(BundleError, match="there exists; choose another directory"):
        louver.extend("any", into=tmp_path / "there")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="make its directory, or choose another place"):
        finetune(long_bundle, splits(colours), into=tmp_path / "file" / "b")


def test_class_weights_reach_the_probe(long_bundle: Bundle, tmp_path: Path) -> None:
    rows = [r for r in colour_rows(200) if r["label"] == "red"][:40] + [
        r for r in colour_rows(60) if r["label"] == "blue"
    ][:9]
    data = make_splits(read_examples(write_jsonl(tmp_path / "d.jsonl", rows), Columns()))
    heads = [
        (
            finetune(
                long_bundle,
                data,
                into=tmp_path / str(on),
                options=TrainingOptions(epochs=0, class_weights=on),
                progress=False,
            ).path
            / "head.safetensors"
        ).read_bytes()
        for on in (False, True)
    ]
    assert heads[0] != heads[1]


def test_refusals(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="reads 2048 tokens, got max_length=9999; extend it first"):
        finetune(long_bundle, splits(colours), into=tmp_path / "b", options=TrainingOptions(max_length=9999))


def test_half_precision_wants_a_gpu(
    long_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionError, match="precision fp16 is for GPUs; take float32 or bf16"):
        finetune(long_bundle, splits(colours), into=tmp_path / "b", options=TrainingOptions(precision="fp16"))


def test_sparse_patterns_learn_slower_unless_told(long_bundle: Bundle) -> None:
    """Where the pattern leaves pairs out; the checkpoint's own length is attended in full."""
    said: list[str] = []
    default, short = TrainingOptions(), TrainingOptions(max_length=64)
    found = suited(default, long_bundle, said.append)
    assert (found.learning_rate, found.warmup) == (0.75 * default.learning_rate, 1.5 * default.warmup)
    assert said == ["sparse pattern: learning_rate 3.75e-05, warmup 0.15 (--no-sparse-advice keeps the usual ones)"]
    assert suited(short, long_bundle, said.append) == short
    told = TrainingOptions(learning_rate=1e-4)
    kept = suited(told, long_bundle, said.append)
    assert (kept.learning_rate, kept.warmup) == (1e-4, found.warmup)
    without = TrainingOptions(sparse_advice=False)
    assert suited(without, long_bundle, said.append) == without
    by_content = replace(long_bundle, card=long_bundle.card.model_copy(update={"pattern": "topk(64)"}))
    assert suited(default, by_content, said.append).warmup == found.warmup


def test_a_family_without_checkpointing_says_so_before_any_work(
    long_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("louver.training.lesson.probe", lambda *_: pytest.fail("the probe ran first"))
    config = transformers.AlbertConfig(
        vocab_size=30522, hidden_size=32, num_attention_heads=4, intermediate_size=32, embedding_size=16
    )
    transformers.AlbertModel(config).save_pretrained(tmp_path / "albert")
    for file in long_bundle.path.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "albert")
    bundle = louver.extend(tmp_path / "albert", into=tmp_path / "long", max_length=1024)
    options = TrainingOptions(epochs=1, gradient_checkpointing=True, **QUICK)
    with pytest.raises(OptionError, match="transformers' albert has no gradient checkpointing"):
        finetune(bundle, splits(colours), into=tmp_path / "b", options=options, progress=False)


def test_dropped_edges_are_drawn_anew_for_every_batch_and_stay_out_of_judgement(
    long_bundle: Bundle, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    real = drop_edges

    def noted(model: Any, keep: float | None, seed: int) -> None:
        seeds.append(seed)
        assert keep == 0.3
        real(model, keep, seed)

    monkeypatch.setattr("louver.training.learner.drop_edges", noted)
    options = TrainingOptions(epochs=1, drop_edges=0.3, gradient_checkpointing=True, seed=5, **QUICK)
    bundle = finetune(long_bundle, splits(colours), into=tmp_path / "b", options=options, progress=False)
    assert seeds == list(range(5, 5 + len(seeds)))
    assert len(seeds) == bundle.card.history[-1].numbers["steps"]
    assert bundle.card.pattern == long_bundle.card.pattern
    assert bundle.card.history[-1].settings["drop_edges"] == 0.3


def test_checkpointing_and_class_weights_train_too(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    options = TrainingOptions(epochs=1, gradient_checkpointing=True, class_weights=True, **QUICK)
    bundle = finetune(long_bundle, splits(colours), into=tmp_path / "b", options=options, progress=False)
    assert bundle.card.history[-1].numbers["validation"]["accuracy"]["value"] > 0.8


def test_accumulated_batches_are_one_batch(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    """Loss and gradient are means over all of them; head dropout off, so that both draw nothing."""
    curves = {}
    for name, batch, accumulation in (("one", 16, 1), ("four", 4, 4)):
        options = TrainingOptions(
            epochs=1, batch_size=batch, accumulation=accumulation, max_length=64, precision="float32"
        )
        source = _without_dropout(fresh_bundle, tmp_path / f"plain-{name}")
        made = finetune(source, splits(colours), into=tmp_path / name, options=options, progress=False)
        curves[name] = made.card.history[-1].numbers["curves"]
    for kind in ("loss", "gradient_norm"):
        assert np.abs(np.asarray(curves["one"][kind]) - np.asarray(curves["four"][kind])).max() < 1e-4


def _without_dropout(bundle: Bundle, into: Path) -> Bundle:
    from louver.bundle import write_card, writing

    with writing(into) as draft:
        for file in bundle.path.iterdir():
            if file.is_file() and file.name not in ("manifest.json", "louver.json"):
                (draft / file.name).write_bytes(file.read_bytes())
        config = json.loads((draft / "config.json").read_text("utf8"))
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (draft / "config.json").write_text(json.dumps(config), "utf8")
        write_card(draft, bundle.card)
    return Bundle.open(into)
