from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from louver.bundle import Bundle
from louver.cli import app
from tests.conftest import colour_rows, write_jsonl

COMMANDS = [
    "run",
    "extend",
    "finetune",
    "distill",
    "quantize",
    "export",
    "evaluate",
    "predict",
    "patterns",
    "check",
    "info",
    "data",
    "create",
    "pretrain",
    "attach",
    "cloze",
    "contrast",
    "doctor",
    "fill",
    "vocabulary",
    "serve",
]


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback, that no user may see
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_are_these() -> None:
    assert sorted(c.name or "" for c in app.registered_commands) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    code, out, _ = call(command, "--help")
    assert code == 0
    assert f"Example: louver {command}" in " ".join(out.split())


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("create", "predict", "data", "serve")])
def test_measuring_commands_write_json(command: str) -> None:
    assert "--json" in call(command, "--help")[1]


def test_patterns_draws_the_branch_that_it_prices() -> None:
    _, short, _ = call("patterns", "by_length({2048: full, inf: window(16)})", "--length", 2048)
    _, long, _ = call("patterns", "by_length({2048: full, inf: window(16)})", "--length", 4096)
    assert short.splitlines()[0] == "█" * 64
    assert long.splitlines()[0].rstrip() != "█" * 64


def test_bench_attention_writes_what_others_build_on(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    options = ("--lengths", "40,70", "--head-dim", 8, "--impls", "dense,gathered,flex", "--rounds", 1, "--no-memory")
    code, out, err = call("bench", "attention", "--pattern", "window(8) | global(1)", *options, "--json", target)
    assert code == 0, err
    assert "efficiency" in out
    rows = json.loads(target.read_text())
    assert {(row["length"], row["impl"]) for row in rows} >= {(40, "sdpa"), (70, "eager"), (70, "gathered")}
    for row in rows:
        assert set(row) >= {
            "pattern",
            "length",
            "head_dim",
            "impl",
            "ms",
            "peak_mb",
            "flops",
            "speedup_vs_dense",
            "speedup_vs_eager",
            "pair_ratio",
            "efficiency",
            "max_error",
        }
        assert row["max_error"] < 1e-5
        assert row["efficiency"] == pytest.approx(row["speedup_vs_dense"] / row["pair_ratio"], abs=2e-3)
    code, _, err = call("bench", "attention", "--lengths", "4,x")
    assert code == 2
    assert "--lengths is a list of numbers, got '4,x'" in err
    code, _, err = call("bench", "attention", "--impls", "quick")
    assert code == 2
    assert "unknown impl 'quick'" in err
    assert "Example: louver bench attention" in " ".join(call("bench", "attention", "--help")[1].split())


def test_patterns_calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOUVER_CACHE", str(tmp_path))
    code, out, err = call("patterns", "calibrate")
    assert code == 0, err
    assert set(json.loads(out)) == {"dense", "gathered", "piece"}
    assert len(list(tmp_path.glob("attention-*.json"))) == 1


def test_create(colours: Path, tmp_path: Path) -> None:
    size = ("--layers", "1", "--width", "16", "--heads", "2", "--vocabulary", "100", "--max-length", "32")
    code, _, err = call("create", colours, "--into", tmp_path / "new", *size)
    assert code == 0, err
    assert (tmp_path / "new" / "model.safetensors").is_file()
    code, _, err = call("create", colours, "--into", tmp_path / "x", "--family", "gpt")
    assert code == 2
    assert "unknown family 'gpt'" in err


def test_pretrain(long_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    arguments = ("--epochs", "1", "--max-length", "64", "--batch-size", "4")
    code, out, err = call("pretrain", long_bundle.path, colours, "--into", tmp_path / "mine", *arguments)
    assert code == 0, err
    assert json.loads(out)["numbers"]["validation"]["perplexity"] > 1
    assert "before: loss" in err
    code, _, err = call("pretrain", long_bundle.path, colours, "--into", tmp_path / "x", "--text", "body")
    assert code == 2
    assert "has no column 'body'; it has: text, label" in err


def test_patterns_recommend(minilm_l3: Path) -> None:
    code, out, err = call("patterns", "recommend", "--model", minilm_l3, "--length", "4096")
    assert code == 0, err
    assert "window(128) | global(1) at 4,096 tokens" in " ".join(out.split())
    assert "ms a layer and text against" in " ".join(err.split())
    code, _, err = call("patterns", "recommend")
    assert code == 2
    assert "louver patterns recommend needs a model; give --model NAME" in err


def test_patterns(tmp_path: Path) -> None:
    code, out, _ = call("patterns", "window(8) | global(1)", "--length", "256", "--json", tmp_path / "p.json")
    assert code == 0
    assert "256 tokens" in out
    figures = json.loads((tmp_path / "p.json").read_text())
    assert figures["pair_ratio"] == pytest.approx(256**2 / figures["pairs"])


def test_user_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    for arguments, message in (
        (("patterns", "windw(8)"), "unknown pattern 'windw'; did you mean 'window'"),
        (("patterns", "window(0)"), "window radius must be positive, got 0"),
        (("info", tmp_path), "is no bundle"),
        (("run", tmp_path / "no.yaml"), "is not a file"),
        (("extend", tmp_path, "--into", tmp_path / "x"), "cannot load"),
        (("finetune", "a", "b", "--into", "c", "--batch-size", "0"), "--batch-size: input should be greater than or"),
        (
            ("pretrain", "a", "b", "--into", "c", "--unit", "letter"),
            "--unit: input should be 'token', 'word'",
        ),
        (("distill", "a", "b", "--into", "c", "--layers", "two"), "--layers is a number or a list"),
        (("finetune", "a", "b", "--into", "c", "--group", "g", "--date", "d"), "split in two ways; give one of them"),
        (("extend", "a", "--into", "b", "--short", "some"), "--short is unchanged or same, got 'some'"),
        (("patterns", "full", "--png", tmp_path / "no" / "x.png"), "No such file or directory; make its directory"),
        (("data", tmp_path, "minilm"), "unknown sample 'minilm'; did you mean 'minilm-l"),
    ):
        code, _, err = call(*arguments)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1
        assert "Traceback" not in err


def test_debug_shows_the_traceback() -> None:
    assert CliRunner().invoke(app, ["--debug", "patterns", "windw(8)"]).exception is not None
    call("patterns", "full")  # the flag is not kept


def test_predict_evaluate_check_and_info(exported: Bundle, colours: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [*colour_rows(3), {"text": "", "label": "red"}])
    code, _, err = call("predict", exported.path, source, tmp_path / "out.jsonl")
    assert code == 3
    assert "rows: 4, failed: 1, not read to their end: 0" in err
    (tmp_path / "mine.txt").write_text("red rose\nfire")
    code, out, _ = call("predict", exported.path, tmp_path / "mine.txt")
    assert code == 0
    assert json.loads(out)["label"] in exported.card.labels
    code, out, _ = call("evaluate", exported.path, colours, "--json", tmp_path / "e.json")
    assert code == 0
    assert json.loads((tmp_path / "e.json").read_text()) == json.loads(out)
    for options, message in (
        (("--baseline", "dens"), "unknown baseline 'dens'; did you mean 'dense'"),
        (("--baseline", "dense", "--max-length", 9999), "reads 2048 tokens, got max_length=9999"),
        (("--baseline", "dense", "--batch-size", 0), "batch_size must be positive, got 0"),
        (("--thresholds", "a,b"), "--thresholds is a list of numbers, got 'a,b'"),
        (("--thresholds", "0.5"), "the bundle has 0 thresholds, got 1"),
    ):
        code, _, err = call("evaluate", exported.path, colours, *options)
        assert code == 2
        assert message in err
    assert call("predict", exported.path, source, tmp_path / "out.jsonl", "--chunk", 0)[2].startswith(
        "error chunk must"
    )
    assert call("check", exported.path)[0] == 0
    code, out, _ = call("info", exported.path)
    assert json.loads(out)["labels"] == exported.card.labels


def test_the_steps_one_by_one(tiny: Path, colours: Path, tmp_path: Path) -> None:
    long, tuned = tmp_path / "long", tmp_path / "tuned"
    assert call("extend", tiny, "--into", long, "--max-length", 128, "--pattern", "window(8)")[0] == 0
    code, out, err = call("finetune", long, colours, "--into", tuned, "--epochs", 0)
    assert code == 0, err
    assert json.loads(out)["numbers"]["validation"]["accuracy"]["value"] > 0.5
    code, _, err = call("distill", tuned, colours, "--into", tmp_path / "s", "--layers", "0,2", "--epochs", 0)
    assert code == 2
    assert "distill needs at least one epoch, got epochs=0" in err
    code, _, err = call("distill", tuned, colours, "--into", tmp_path / "s", "--layers", "0,2", "--epochs", 1)
    assert code == 0, err
    assert Bundle.open(tmp_path / "s").card.history[-1].settings["layers"] == [0, 2]


def test_embeddings_are_evaluated_on_pairs(long_bundle: Bundle, tmp_path: Path) -> None:
    pairs = [{"text": "red sky", "pair": "a red sky", "alike": 3}, {"text": "blue sea", "pair": "green", "alike": 1}]
    rows = write_jsonl(tmp_path / "pairs.jsonl", [*pairs, {"text": "green", "pair": "grass", "alike": 2}])
    code, out, err = call("evaluate", long_bundle.path, rows, "--label", "alike")
    assert code == 0, err
    assert json.loads(out)["metric"] == "spearman"
    code, out, _ = call("evaluate", long_bundle.path, rows)
    assert set(json.loads(out)["score"]) == {"value", "low", "high", "n", "recall@1", "recall@10"}
    code, _, err = call("evaluate", long_bundle.path, rows, "--metric", "f1")
    assert code == 2
    assert "--metric 'f1' is for tasks with labels; leave it out for embeddings" in err
    code, _, err = call("evaluate", long_bundle.path, rows, "--pair", "other")
    assert code == 2
    assert "no column 'other'; it has: text, pair, alike" in err


def test_trainings_of_every_kind(fresh_bundle: Bundle, colours: Path, tmp_path: Path) -> None:
    """Each writes a bundle, with settings as they were given."""
    short = ("--epochs", 1, "--max-length", 32, "--report", "none", "--precision", "float32")
    few, lora = (*short, "--patience", 1, "--warmup", 0.2, "--weight-decay", 0.02, "--max-gradient", 2), tmp_path / "l"
    adapted = ("--adapter", "lora", "--adversary", "fgm", "--drop-edges", 0.9, "--no-sparse-advice")
    code, _, err = call("finetune", fresh_bundle.path, colours, "--into", lora, *few, *adapted)
    assert code == 0, err
    settings = Bundle.open(lora).card.history[-1].settings
    assert [settings[name] for name in ("patience", "warmup", "weight_decay", "max_gradient")] == [1, 0.2, 0.02, 2.0]
    assert [settings[name] for name in ("adversary", "drop_edges", "sparse_advice", "report")] == [
        "fgm",
        0.9,
        False,
        [],
    ]
    code, _, err = call("attach", fresh_bundle.path, lora / "adapter", "--into", tmp_path / "again")
    assert code == 0, err
    code, out, err = call("doctor", lora, colours)
    assert code == 0, err
    assert set(json.loads(out)) == {"found", "doubtful"}

    tags = [{"text": f"moss {row['text']}", "spans": [[0, 4, "green"]]} for row in colour_rows(60)]
    rows = write_jsonl(tmp_path / "tags.jsonl", tags)
    tagger = tmp_path / "tags"
    options = ("--task", "tag", "--truncate", "window", "--domain", colours)
    code, _, err = call("finetune", fresh_bundle.path, rows, "--into", tagger, *short, *options)
    assert code == 2
    assert "texts of another domain serve labels of single texts" in err
    code, _, err = call("finetune", fresh_bundle.path, rows, "--into", tagger, *short, *options[:4])
    assert code == 0, err
    assert Bundle.open(tagger).card.truncation == "window"

    code, _, err = call("doctor", tagger, rows, "--task", "tag")
    assert code == 2
    assert "doubtful labels are looked for where every text has one label" in err
    code, _, err = call("finetune", fresh_bundle.path, colours, "--into", tmp_path / "n", "--adapter", "lorra")
    assert code == 2
    assert "unknown adapter 'lorra'; did you mean 'lora'?" in err

    mine = tmp_path / "mine"
    code, _, err = call("pretrain", fresh_bundle.path, colours, "--into", mine, *short, "--masked", 1, "--replaced", 0)
    assert code == 0, err
    code, out, err = call("fill", mine, "the [MASK] sea", "--top", 2)
    assert code == 0, err
    assert len(json.loads(out)[0]) == 2
    words = ("--template", "{text} is [MASK].", "--words", "red=red blue=blue green=green")
    code, _, err = call("cloze", mine, colours, "--into", tmp_path / "cloze", *short, *words)
    assert code == 0, err
    new = write_jsonl(tmp_path / "new.jsonl", [{"text": "a quorbix by the sea"}] * 3)
    code, out, err = call("vocabulary", mine, new, "--into", tmp_path / "words", "--words", 3, "--least", 2)
    assert code == 0, err
    assert json.loads(out)["numbers"]["first"] == ["quorbix"]
    code, _, err = call("contrast", mine, colours, "--into", tmp_path / "embed", *short)
    assert code == 0, err
    assert Bundle.open(tmp_path / "embed").card.task == "embed"
