from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from louver.bundle import Bundle, Card, write_card, writing
from louver.errors import BundleError, StorageError


def make(into: Path, payload: bytes = b"weights") -> Bundle:
    with writing(into) as draft:
        (draft / "model.safetensors").write_bytes(payload)
        (draft / "onnx").mkdir()
        (draft / "onnx" / "a.bin").write_bytes(payload)
        write_card(draft, Card(max_length=512, original_length=512))
    return Bundle.open(into)


def test_written_and_opened(tmp_path: Path) -> None:
    bundle = make(tmp_path / "b")
    assert bundle.card.max_length == 512
    assert bundle.digest == make(tmp_path / "c").digest != make(tmp_path / "d", b"other").digest
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["model.safetensors", "onnx/a.bin", "louver.json"])
def test_a_changed_byte_is_seen(tmp_path: Path, name: str) -> None:
    make(tmp_path / "b")
    file = tmp_path / "b" / name
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(BundleError, match="was changed after it was written"):
        Bundle.open(tmp_path / "b")


def test_missing_and_extra_files_are_seen(tmp_path: Path) -> None:
    make(tmp_path / "b")
    (tmp_path / "b" / "extra.py").write_text("")
    with pytest.raises(BundleError, match=r"holds extra.py, which its manifest does not list"):
        Bundle.open(tmp_path / "b")
    (tmp_path / "b" / "extra.py").unlink()
    (tmp_path / "b" / "onnx" / "a.bin").unlink()
    with pytest.raises(BundleError, match=r"lacks onnx/a.bin"):
        Bundle.open(tmp_path / "b")


def test_a_run_directory_stands_for_its_accepted_bundle(tmp_path: Path) -> None:
    bundle = make(tmp_path / "run" / "bundles" / "02-finetune-abc")
    (tmp_path / "run" / "accepted.txt").write_text("bundles/02-finetune-abc\n")
    assert Bundle.open(tmp_path / "run").digest == bundle.digest
    (tmp_path / "run" / "accepted.txt").write_text("bundles/gone\n")
    with pytest.raises(BundleError, match=r"run/bundles/gone does not exist; give the directory of a bundle"):
        Bundle.open(tmp_path / "run")


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"typo does not exist; give the directory of a bundle"):
        Bundle.open(tmp_path / "typo")
    with pytest.raises(BundleError, match="is no bundle"):
        Bundle.open(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "b") as draft:
        write_card(draft, Card(max_length=1, original_length=1, schema_version=99))
    with pytest.raises(BundleError, match="schema version 99"):
        Bundle.open(tmp_path / "b")
    with writing(tmp_path / "c") as draft:
        (draft / "louver.json").write_text(json.dumps({"max_length": "many"}))
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle.open(tmp_path / "c")


def test_names_that_no_directory_can_have_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be opened"):
        Bundle.open(tmp_path / ("x" * 300))
    (tmp_path / "accepted.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BundleError, match="cannot be opened"):
        Bundle.open(tmp_path)


def test_existing_is_kept_unless_replaced(tmp_path: Path) -> None:
    make(tmp_path / "b")
    with pytest.raises(BundleError, match="exists"), writing(tmp_path / "b"):
        pass
    with writing(tmp_path / "b", replace=True) as draft:
        write_card(draft, Card(max_length=7, original_length=7))
    assert Bundle.open(tmp_path / "b").card.max_length == 7
    assert len(list(tmp_path.iterdir())) == 1


def test_a_replacement_that_fails_or_dies_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make(tmp_path / "b")
    real = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match="Input/output error"), writing(tmp_path / "b", replace=True) as draft:
        write_card(draft, Card(max_length=7, original_length=7))
    monkeypatch.undo()
    assert Bundle.open(tmp_path / "b").digest == old.digest
    # killed between the two renames: the owner is gone, the old bundle waits under its hidden name
    (tmp_path / "b").rename(tmp_path / ".b.999999999-x.old")
    assert Bundle.open(tmp_path / "b").digest == old.digest
    shutil.copytree(tmp_path / "b", tmp_path / ".b.999999999-x.old")
    assert Bundle.open(tmp_path / "b").digest == old.digest
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_bundle_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    late = writing(tmp_path / "b")
    write_card(late.__enter__(), Card(max_length=7, original_length=7))
    make(tmp_path / "b")
    with pytest.raises(BundleError, match="appeared while it was being written"):
        late.__exit__(None, None, None)
    assert Bundle.open(tmp_path / "b").card.max_length == 512


def test_a_manifest_that_is_none(tmp_path: Path) -> None:
    make(tmp_path / "b")
    for content in (b"\xff\xfe", b"[]", b"{"):
        (tmp_path / "b" / "manifest.json").write_bytes(content)
        with pytest.raises(BundleError, match="write the bundle again"):
            Bundle.open(tmp_path / "b")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), writing(tmp_path / "b"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"could not write .*No space left on device; nothing was left behind"):
        make(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_are_one_line_too(tmp_path: Path) -> None:
    code = f"""
import resource, torch
from pathlib import Path
from safetensors.torch import save_file
from louver.bundle import writing
from louver.errors import StorageError
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with writing(Path({str(tmp_path)!r}) / "b") as draft:
        save_file({{"w": torch.zeros(10000)}}, draft / "model.safetensors")
except StorageError as error:
    print("ok", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("ok could not write"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_bundle_and_the_next_writer_tidies(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from louver.bundle import writing
with writing(Path({str(tmp_path)!r}) / "b") as draft:
    (draft / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "b").exists()
    assert len(list(tmp_path.glob(".b.*.partial"))) == 1
    make(tmp_path / "b")
    assert list(tmp_path.glob(".b.*.partial")) == []


def test_a_moved_bundle_opens(tmp_path: Path) -> None:
    digest = make(tmp_path / "b").digest
    shutil.move(tmp_path / "b", tmp_path / "elsewhere")
    assert Bundle.open(tmp_path / "elsewhere").digest == digest
