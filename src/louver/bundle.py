"""The one thing that steps pass on: a directory with a card, a manifest of hashes, and a model.

A bundle is written into a hidden sibling, hashed, synced and renamed, so that whoever looks sees no bundle or a whole
one, whatever kills the writer. Opening a bundle checks every byte against the manifest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from louver.errors import BundleError
from louver.storage import storing

CARD = "louver.json"
MANIFEST = "manifest.json"
ACCEPTED = "accepted.txt"
"""File of a run directory that names its last accepted bundle."""
SCHEMA_VERSION = 1


class Record(BaseModel):
    """One step of a bundle's history."""

    model_config = ConfigDict(extra="forbid")
    step: str
    settings: dict[str, Any] = {}
    parents: list[str] = []
    """Digests of the bundles that the step read."""
    numbers: dict[str, Any] = {}
    """What was measured while it ran."""
    seconds: float | None = None
    versions: dict[str, str] = {}


class Golden(BaseModel):
    """Texts and the outputs (logits or embeddings) they had when the bundle was written."""

    model_config = ConfigDict(extra="forbid")
    texts: list[str | tuple[str, str]]
    outputs: list[list[float]]
    """Of each text; of one with an output for every token, the first ones."""
    tolerance: float = 1e-4


class Card(BaseModel):
    """What a bundle says of itself: all that is needed to use the model without knowing how it was made."""

    model_config = ConfigDict(extra="forbid")
    schema_version: int = SCHEMA_VERSION
    task: Literal["embed", "classify", "tag", "answer"] = "embed"
    inputs: Literal["text", "pair"] = "text"
    """What it reads: texts, or pairs of them."""
    kind: Literal["single", "multi", "regression"] | None = None
    """Of a classification: one label, several labels, or a number."""
    labels: list[str] = []
    """Names, in the order of the logits; of a tagger the types of spans, each with two outputs behind the first."""
    thresholds: list[float] = []
    """Of several labels: the probability from which each one counts, tuned on validation. Of answers: the score from
    which there is one."""
    pattern: str = "full"
    max_length: int
    """Tokens read at most, specials included."""
    original_length: int
    """Tokens that the checkpoint read before it was extended."""
    pooling: Literal["cls", "mean", "own", "none", "mask"] = "mean"
    """How token states become one vector; "own" is the checkpoint's own head, "none" keeps one vector a token, "mask"
    takes the state where a template's mask stands, and answers by the words that fill it."""
    prompt: str = ""
    """Put before every text, as in ``query: ``."""
    bottleneck: int = 0
    """Numbers in the middle of each layer's bottleneck adapter; 0 where there is none."""
    truncation: str = "error"
    special_tokens_in_text: Literal["plain"] = "plain"
    """``[SEP]`` typed by a user is text, not a separator."""
    precision: Literal["float32", "int8", "int8-weights", "float16"] = "float32"
    batch_invariant: bool = True
    """Whether a text's answer is the same in any batch; if not, the runtime gives each text a call of its own."""
    license: str | None = None
    origin: str | None = None
    golden: Golden | None = None
    history: list[Record] = []
    onnx: dict[str, Any] = Field(default_factory=dict)
    """Of an exported bundle: graphs with their token limits and multiples."""


@dataclass(frozen=True)
class Bundle:
    """A directory that was written by `writing`.

    Attributes:
        path: the directory.
        card: its `louver.json`.
        digest: sha256 over its manifest; names the bundle's exact contents.
    """

    path: Path
    card: Card
    digest: str

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Bundle:
        """Open a bundle and check its bytes.

        Args:
            path: the directory; that of a recipe's run stands for its last accepted bundle.
            verify: hash every file; False only where a caller has just done so.

        Raises:
            BundleError: if it does not exist, is no bundle, of a newer schema, or a file is missing or changed.
        """
        root = Path(path)
        try:
            _recover(root)
            if (root / ACCEPTED).is_file():
                root = root / (root / ACCEPTED).read_text("utf8").strip()
            there = root.exists()
        except (OSError, ValueError) as error:  # a name that no file can have, or bytes that are no text
            raise BundleError(f"{root} cannot be opened ({error}); give the directory of a bundle") from error
        if not there:
            raise BundleError(f"{root} does not exist; give the directory of a bundle, or of a run with a report")
        if not (root / CARD).is_file() or not (root / MANIFEST).is_file():
            raise BundleError(
                f"{root} is no bundle: it lacks {CARD} or {MANIFEST}; make one with 'louver extend' or 'louver run'"
            )
        if verify:
            _verify(root)
        try:
            raw = json.loads((root / CARD).read_text("utf8"))
            if raw.get("schema_version", 0) > SCHEMA_VERSION:
                raise BundleError(
                    f"{root} has schema version {raw['schema_version']}, this louver reads up to {SCHEMA_VERSION}; "
                    "upgrade louver"
                )
            card = Card.model_validate(raw)
        except (ValidationError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise BundleError(f"{root / CARD} cannot be read ({reason}); write the bundle again") from error
        return cls(root, card, _sha256(root / MANIFEST))

    def size(self) -> int:
        """Return the bytes that serving needs: graphs and weights, tokenizer and card."""
        serving = [f for f in (self.path / "onnx").glob("*") if f.is_file()]
        weights = serving or list(self.path.glob("*.safetensors"))
        small = [f for f in self.path.iterdir() if f.is_file() and f.suffix == ".json"]
        return sum(f.stat().st_size for f in (*weights, *small))


@contextmanager
def writing(into: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a bundle: fill the yielded directory (card included, see `write_card`), and it appears whole.

    Args:
        into: where the bundle is to be; must not exist unless `replace`.
        replace: put the new bundle in the place of an old one.

    Yields:
        A hidden sibling directory, removed if the block raises.

    Raises:
        BundleError: if `into` exists.
        StorageError: if the disk is full or refuses.
    """
    target = check_target(into, replace=replace)
    with storing(target):
        _remove_stale(target)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.{os.getpid()}-", suffix=".partial", dir=target.parent))
        try:
            yield draft
            manifest = {f.relative_to(draft).as_posix(): _sha256(f) for f in sorted(draft.rglob("*")) if f.is_file()}
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf8")
            draft.chmod(0o755)
            for file in [*draft.rglob("*"), draft]:
                _sync(file)
            _put(draft, target, replace=replace)
            _sync(target.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def check_target(into: str | Path, *, replace: bool = False) -> Path:
    """Refuse a place where no bundle can be written; asked before hours of work, not after them.

    Args:
        into: where a bundle is to be; its parent is made.
        replace: whether it may take the place of an old one.

    Raises:
        BundleError: if `into` exists.
        StorageError: if its directory cannot be written.
    """
    target = Path(into)
    with storing(target):
        _recover(target)
        if target.exists() and not replace:
            raise BundleError(f"{target} exists; choose another directory, or delete it first")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "permission denied", str(target.parent))
    return target


def _put(draft: Path, target: Path, *, replace: bool) -> None:
    """Rename a draft to its target; an old bundle steps aside, and back if the draft cannot take its place."""
    if not target.exists():
        draft.rename(target)
        return
    if not replace:
        raise BundleError(f"{target} appeared while it was being written; choose another directory")
    old = draft.with_suffix(".old")
    target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _recover(target: Path) -> None:
    """Put an old bundle back that a killed writer had moved aside, and remove one that was replaced."""
    for old in target.parent.glob(f".{escape(target.name)}.*-*.old"):
        if _owner_lives(old, target):
            continue
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def write_card(draft: Path, card: Card) -> None:
    """Put the card into a bundle that is being written."""
    (draft / CARD).write_text(card.model_dump_json(indent=1), "utf8")


def _verify(root: Path) -> None:
    try:
        manifest: dict[str, str] = json.loads((root / MANIFEST).read_text("utf8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise BundleError(f"{root / MANIFEST} cannot be read; write the bundle again") from error
    if not isinstance(manifest, dict):
        raise BundleError(f"{root / MANIFEST} is no manifest; write the bundle again")
    for name, expected in manifest.items():
        file = root / name
        if not file.is_file():
            raise BundleError(f"{root} lacks {name}, which its manifest lists; copy the whole directory again")
        if _sha256(file) != expected:
            raise BundleError(f"{file} was changed after it was written (sha256 differs); copy or write it again")
    extra = {str(f.relative_to(root).as_posix()) for f in root.rglob("*") if f.is_file()} - {*manifest, MANIFEST}
    if extra:
        raise BundleError(f"{root} holds {sorted(extra)[0]}, which its manifest does not list; remove it")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows cannot sync a directory
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale(target: Path) -> None:
    """Remove what killed writers of this bundle left; a writer that lives keeps its draft."""
    for draft in target.parent.glob(f".{escape(target.name)}.*-*.partial"):
        if not _owner_lives(draft, target):
            shutil.rmtree(draft, ignore_errors=True)


def _owner_lives(draft: Path, target: Path) -> bool:
    """Say whether the process that a draft's name carries may still run."""
    owner = draft.name[len(target.name) + 2 :].split("-")[0]
    return not owner.isdigit() or _alive(int(owner))


def _alive(pid: int) -> bool:
    if os.name == "nt":  # there, os.kill would end the process instead of asking for it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
