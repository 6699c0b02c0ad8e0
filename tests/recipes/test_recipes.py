from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml

from louver.bundle import Bundle, write_card, writing
from louver.compression import distill
from louver.encoders import read_bundle
from louver.errors import OptionError, RecipeError, StorageError
from louver.recipes import read_recipe, run
from louver.storage import locked


def recipe(tiny: Path, colours: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "model": str(tiny),
        "data": {"path": str(colours), "limits": {"test": 20}},
        "max_drop": 0.3,
        "steps": [
            {"extend": {"max_length": 2048, "pattern": "window(8) | global(1)"}},
            {"finetune": {"epochs": 1, "learning_rate": 0.001, "max_length": 64}},
            {"distill": {"layers": 2, "epochs": 1, "learning_rate": 0.001, "max_length": 64}},
        ],
        "measure": {"documents": 2, "rounds": 1},
        **changes,
    }


def written(directory: Path, raw: dict[str, Any]) -> Path:
    file = directory / "recipe.yaml"
    file.write_text(yaml.safe_dump(raw), "utf8")
    return file


def test_the_whole_way(tiny: Path, colours: Path, tmp_path: Path) -> None:
    raw = recipe(tiny, colours, baselines=[{"kind": "truncated"}, {"kind": "windows"}, {"kind": "dense"}])
    raw["steps"] += ["export", {"quantize": {}}]
    said: list[str] = []
    report = run(read_recipe(written(tmp_path, raw)), into=tmp_path / "run", say=said.append, progress=False)
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == report
    names = [c["name"] for c in report["contenders"]]
    assert names == ["truncated-64", "windows-64", "dense-2048", "finetune", "distill", "export", "quantize"]
    keys = {"name", "kind", "accepted", "score", "relative_drop", "documents_per_s", "p50_ms", "memory_mb", "size_mb"}
    for contender in report["contenders"]:
        assert keys | {"speedups", "agreement", "command"} <= set(contender)
        assert set(contender["score"]) == {"value", "low", "high", "n"}
        assert contender["p50_ms"]["512"] > 0
        assert contender["p50_ms"]["4096"] is None
        assert contender["memory_mb"] > 50
    assert report["data"]["n_test"] == 20
    accepted = [c for c in report["contenders"] if c["kind"] == "bundle" and c["accepted"]]
    assert Bundle.open(tmp_path / "run").path == tmp_path / "run" / accepted[-1]["bundle"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "http://" not in page.split("plotly")[0]
    assert all(name in page for name in names)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run" / "bundles").iterdir()}
    said.clear()
    run(read_recipe(tmp_path / "recipe.yaml"), into=tmp_path / "run", say=said.append, progress=False)
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run" / "bundles").iterdir()}
    assert not any("begins" in line for line in said)


def test_a_step_over_the_budget_is_refused(
    tiny: Path, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A student whose head is broken: the run says so and goes on from its teacher."""
    import louver.recipes.runner as runner

    real = distill

    def broken(teacher: Bundle, data: Any, *, into: Path, **rest: Any) -> Bundle:
        bundle = real(teacher, data, into=into.with_name(f"good-{into.name}"), **rest)
        reader = read_bundle(bundle)
        assert reader.head is not None
        reader.head.weight.data.neg_()
        with writing(into) as draft:
            reader.save(draft)
            for file in bundle.path.glob("tokenizer*"):
                shutil.copy(file, draft)
            write_card(draft, bundle.card)
        return Bundle.open(into)

    monkeypatch.setattr(runner, "distill", broken)
    raw = recipe(tiny, colours)
    raw["steps"].append({"distill": {"layers": 3, "epochs": 1, "max_length": 64}})
    monkeypatch.setattr(runner, "write_report", lambda *a, **k: {"contenders": a[2]})
    said: list[str] = []
    report = run(read_recipe(written(tmp_path, raw)), into=tmp_path / "run", say=said.append, progress=False)
    assert any(line.startswith("gate: distill: fail") for line in said)
    assert any(line.startswith("refused: distill; the run goes on from 02-finetune") for line in said)
    tuned, first, second = report["contenders"]
    assert not first.accepted
    assert second.bundle.card.history[-1].parents == [tuned.bundle.digest]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [{"finetune": {"epochz": 3}}]}, r"steps\[0\].finetune: unknown key 'epochz'; did you mean 'epochs'"),
        ({"stepz": []}, ": unknown key 'stepz'; did you mean 'steps'"),
        ({"data": {"path": "x", "txt": "y"}}, "data: unknown key 'txt'; did you mean 'text'"),
        (
            {"steps": [{"finetune": {"epochs": -1}}]},
            r"steps\[0\].finetune.epochs: .*greater than or equal to 0, got -1",
        ),
        ({"steps": [{"prune": {}}]}, r"steps\[0\]: unknown key 'prune'"),
        ({"steps": [{"export": {}, "quantize": {}}]}, r"steps\[0\]: .*exactly one verb"),
        ({"steps": []}, "steps: "),
        ({"name": "../up"}, "name: "),
        ({"data": {"path": "x", "group": "g", "date": "d"}}, "data: .*give group or date, not both"),
        ({"data": {"path": "x", "shares": [0.5, 0.5]}}, "data: .*shares must be positive and leave training some"),
        ({"data": {"path": "x", "limits": {"train": -5}}}, "data.limits.train: .*greater than 0, got -5"),
        ({"steps": [{"finetune": {"epochs": 0, "probe": False}}]}, "epochs 0 without probe would leave a random head"),
        ({"data": {"path": "x", "group": "g"}}, "data: .*by must be 'group' for the columns given, got 'random'"),
    ],
)
def test_bad_recipes_name_the_path(
    tiny: Path, colours: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(written(tmp_path, recipe(tiny, colours, **change)))
    assert "\n" not in str(caught.value)


def test_recipes_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is not a file"):
        read_recipe(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(RecipeError, match="is no YAML"):
        read_recipe(tmp_path / "bad.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(RecipeError, match="is no YAML"):
        read_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("verbs", "message"),
    [
        ("finetune", "steps begin with the one extend"),
        ("extend extend finetune", "steps begin with the one extend"),
        ("extend export", "need a finetune"),
        ("extend distill finetune", "distill needs a teacher; put finetune before it"),
        ("extend finetune export distill", "distill cannot train exported graphs; put it before export"),
        ("extend finetune quantize", "quantize works on exported graphs; put export before it"),
        ("extend finetune export export", "export twice would change nothing"),
    ],
)
def test_steps_that_do_not_fit_are_refused_before_anything_runs(
    tiny: Path, colours: Path, tmp_path: Path, verbs: str, message: str
) -> None:
    steps = [{verb: {"layers": 2} if verb == "distill" else {}} for verb in verbs.split()]
    with pytest.raises(RecipeError, match=message):
        read_recipe(written(tmp_path, recipe(tiny, colours, steps=steps)))


def test_int8_that_is_no_faster_is_refused(exported: Bundle, int8: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from louver.recipes.runner import Made, _pays
    from louver.recipes.schema import Step

    numbers = int8.card.history[-1].numbers
    for pays, keep, kept in ((True, "if_faster", True), (False, "if_faster", False), (False, "always", True)):
        monkeypatch.setitem(numbers, "pays", pays)
        one = Made(Step.model_validate({"quantize": {"keep": keep}}), "key", int8)
        assert _pays(one) is kept
        assert Made(one.step, "key", int8, pays=_pays(one)).accepted is kept
    refused = Made(one.step, "key", int8, pays=False)
    assert refused.note.endswith("no faster than float32 on this machine")
    assert _pays(Made(Step.model_validate("export"), "key", exported))


def test_the_resolved_recipe_reads_back(tiny: Path, colours: Path, tmp_path: Path) -> None:
    one = read_recipe(written(tmp_path, recipe(tiny, colours)))
    (tmp_path / "again.yaml").write_text(one.to_yaml(), "utf8")
    assert read_recipe(tmp_path / "again.yaml") == one


def test_the_recipes_of_the_house_are_sound() -> None:
    for file in (Path(__file__).parents[2] / "recipes").glob("*.yaml"):
        assert read_recipe(file).steps


def test_a_checkpoint_with_a_head_goes_the_same_way(
    tiny: Path, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extended bundle classifies too, but by other labels: it stands in no report. Baselines of a kind differ."""
    import louver.recipes.runner as runner

    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=5)
    model.save_pretrained(tmp_path / "model")
    for file in tiny.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "model")
    monkeypatch.setattr(runner, "write_report", lambda *a, **k: {"contenders": a[2], "reference": k["reference"]})
    raw = recipe(tmp_path / "model", colours, baselines=[{"kind": "dense"}, {"kind": "dense", "batch_size": 1}])
    raw["steps"] = raw["steps"][:2]
    report = run(read_recipe(written(tmp_path, raw)), into=tmp_path / "run", say=lambda _: None, progress=False)
    assert [c.name for c in report["contenders"]] == ["dense-2048", "dense-2048-2", "finetune"]
    assert report["reference"] == "finetune"
    assert all(c.bundle.card.labels == ["blue", "green", "red"] for c in report["contenders"])


def test_what_follows_a_refused_export_is_skipped_and_a_second_finetune_is_gated(
    tiny: Path, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import louver.recipes.runner as runner
    from louver.measure.intervals import Score, Verdict

    gated: list[str] = []

    def judge(*_: object) -> Verdict:
        gated.append("x")
        return Verdict("fail" if len(gated) == 2 else "pass", Score(0.5, 0.4, 0.6, 20), 0.3)

    monkeypatch.setattr(runner, "judge", judge)
    monkeypatch.setattr(runner, "write_report", lambda *a, **k: {"contenders": a[2]})
    raw = recipe(tiny, colours)
    tune = {"finetune": {"epochs": 0, "max_length": 64}}
    raw["steps"] = [raw["steps"][0], tune, {"finetune": {"epochs": 0, "seed": 5}}, {"export": {}}, {"quantize": {}}]
    said: list[str] = []
    report = run(read_recipe(written(tmp_path, raw)), into=tmp_path / "run", say=said.append, progress=False)
    assert len(gated) == 2
    assert [(c.name, c.accepted) for c in report["contenders"]] == [
        ("finetune", True),
        ("finetune-2", True),
        ("export", False),
    ]
    assert any(line.startswith("skipped: quantize; export was refused") for line in said)


def test_kept_answers_of_other_texts_are_refused(tmp_path: Path) -> None:
    from louver.recipes.runner import _Kept

    with pytest.raises(OptionError, match="2 answers were kept for 3 texts; delete the run's validation/"):
        _Kept(np.zeros((2, 3))).logits(["a", "b", "c"])


def test_a_change_of_louver_itself_makes_bundles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import louver.recipes.runner as runner

    before = runner._key("extend", {}, "model", [])
    assert before == runner._key("extend", {}, "model", [])
    monkeypatch.setattr(runner, "source_digest", lambda: "other")
    assert runner._key("extend", {}, "model", []) != before


def test_contenders_of_one_verb_are_told_apart() -> None:
    from louver.recipes.runner import _names

    assert _names(["finetune", "distill", "distill", "export"]) == ["finetune", "distill", "distill-2", "export"]


def test_one_run_a_directory(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StorageError, match="is in use by another run"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def kill_and_rerun(directory: Path, raw: dict[str, Any], after: float) -> bool:
    """Kill a run some seconds after its start, look at what it left, and finish it; say whether it still ran."""
    directory.mkdir(parents=True, exist_ok=True)
    file = written(directory, raw)
    command = [sys.executable, "-m", "louver", "run", str(file), "--into", str(directory / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(after)
        killed = False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed = True
    for bundle in (directory / "run" / "bundles").glob("[!.]*"):
        Bundle.open(bundle)  # whole, or it would raise
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"killed after {after:.2f} s: {done.stderr[-2000:]}"
    report = json.loads((directory / "run" / "report.json").read_text())
    assert [c["name"] for c in report["contenders"]] == ["finetune", "distill"]
    assert not list((directory / "run" / "bundles").glob(".*"))
    return killed


def test_a_killed_run_is_finished_by_the_next(tiny: Path, colours: Path, tmp_path: Path) -> None:
    moment = random.Random(0).uniform(6, 12)
    while not kill_and_rerun(tmp_path / f"{moment:.1f}", recipe(tiny, colours), moment):
        moment /= 2  # this machine had finished it by then


@pytest.mark.soak
def test_ten_kills(tiny: Path, colours: Path, tmp_path: Path) -> None:
    """Each at a random moment of a new run; a whole run is timed first, so that the moments spread over all of it."""
    began = time.perf_counter()
    kill_and_rerun(tmp_path / "whole", recipe(tiny, colours), 600)
    whole = time.perf_counter() - began
    rng, kills, rounds = random.Random(0), 0, 0
    while kills < 10:
        rounds += 1
        assert rounds <= 30, f"only {kills} of {rounds} runs were still running when they were to be killed"
        kills += kill_and_rerun(tmp_path / str(rounds), recipe(tiny, colours), rng.uniform(0, whole))
