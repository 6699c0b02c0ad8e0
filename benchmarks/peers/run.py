"""Contenders answer the same texts in turns, each in a process and an environment of its own.

    python benchmarks/peers/work.py work.jsonl
    python benchmarks/peers/run.py work.jsonl --rounds 5 --json peers.json

Every figure is a share of what the machine multiplies at most (`sgemm.py`), measured in the same rounds. Useful work is
counted, not done: the products of the linear layers for every real token, and attention's for every allowed pair.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
MODEL = Path("data/models/minilm-l6")
HOME = Path("runs/peers")


def bundles() -> dict[str, Path]:
    """Make what louver and sentence-transformers load, once."""
    import louver

    made = {"plain": HOME / "plain", "onnx": HOME / "onnx", "int8": HOME / "int8"}
    if not made["plain"].exists():
        louver.extend(MODEL, into=made["plain"], max_length=512, pattern="full")
    if not made["onnx"].exists():
        from louver.export import export

        export(made["plain"], into=made["onnx"])
    if not made["int8"].exists():
        from louver.compression import quantize

        quantize(made["onnx"], into=made["int8"])
    return made


def environment(name: str) -> str:
    """Return the interpreter of a peer, whose environment is made when it is missing; louver's own has no list."""
    wanted = HERE / name / "requirements.txt"
    if not wanted.exists():
        return sys.executable
    home = HOME / "environments" / name
    python = home / "bin/python"
    if not (home / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted)], check=True)
        (home / ".ready").touch()
    return str(python)


def contenders(made: dict[str, Path]) -> dict[str, list[str]]:
    """Return the commands, without the work and the place for outputs."""
    return {
        "louver, openvino": ["louver", str(made["onnx"]), "openvino"],
        "louver, onnxruntime": ["louver", str(made["onnx"]), "onnxruntime"],
        "louver, int8 on onnxruntime": ["louver", str(made["int8"]), "onnxruntime"],
        "sentence-transformers, batches of 32": ["sentence-transformers", str(made["plain"]), "32"],
        "sentence-transformers, one by one": ["sentence-transformers", str(made["plain"]), "1"],
        "transformers pipeline, batches of 32": ["transformers-pipeline", str(made["plain"]), "32"],
    }


class Process:
    """A driver that is sent lines and answers each with a number."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        if self._said() != "ready":
            raise SystemExit(f"{command[1]} did not start")

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def turn(self) -> float:
        """Ask once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._said())

    def end(self) -> None:
        """Close its input, which ends it."""
        self._process.communicate()


def useful(lengths: list[int]) -> float:
    """Return the GFLOP of a model of MiniLM-L6's size on texts of these lengths."""
    config = json.loads((MODEL / "config.json").read_text("utf8"))
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    token = layers * 2 * (4 * width**2 + 2 * width * inner)
    pair = layers * 4 * width
    return sum(n * token + n * n * pair for n in lengths) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names of contenders begin with one of these, comma between them")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from louver.measure.machine import describe
    from louver.text import Tokenizer
    from louver.text.rows import read_rows

    made = bundles()
    asked = contenders(made)
    if given.only:
        asked = {name: x for name, x in asked.items() if name.startswith(tuple(given.only.split(",")))}
    texts = [str(row["text"]) for row in read_rows(given.work)]
    lengths = [len(ids) + 2 for ids in Tokenizer.open(made["plain"]).encode(texts)]
    work = useful([min(n, 512) for n in lengths])
    outputs = {name: HOME / f"outputs-{number}.npy" for number, name in enumerate(asked)}
    running = {
        name: Process([environment(x[0]), str(HERE / x[0] / "drive.py"), str(given.work), str(outputs[name]), *x[1:]])
        for name, x in asked.items()
    }
    peak = Process([sys.executable, str(HERE / "sgemm.py")])
    seconds: dict[str, list[float]] = {name: [] for name in running}
    peaks: list[float] = []
    for turn in range(given.rounds):
        for name, process in running.items():
            peaks.append(peak.turn())
            seconds[name].append(process.turn())
            print(f"round {turn + 1}: {name}: {seconds[name][-1]:.1f} s, sgemm {peaks[-1]:.0f} GFLOP/s", flush=True)
    for process in (*running.values(), peak):
        process.end()
    top = median(peaks)
    first = np.load(next(iter(outputs.values())))
    rows: dict[str, dict[str, Any]] = {}
    for name, found in seconds.items():
        took, mine = median(found), np.load(outputs[name])
        cosine = (mine * first).sum(1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(first, axis=1)
        rows[name] = {
            "seconds": round(took, 2),
            "texts_per_s": round(len(texts) / took, 1),
            "tokens_per_s": round(sum(lengths) / took),
            "share_of_peak": round(work / took / top, 3),
            "louver_is_faster_by": round(took / median(next(iter(seconds.values()))), 2),
            "least_cosine_to_louver": float(f"{cosine.min():.7f}"),
        }
    print(json.dumps(rows, indent=1))
    if given.json:
        figures = {"machine": describe(), "gflop": round(work, 1), "sgemm_gflops": round(top, 1), "rows": rows}
        given.json.write_text(json.dumps(figures, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
