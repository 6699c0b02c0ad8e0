"""Small files beside a bundle that was trained with an adapter, and the same bundle from them again."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from louver.bundle import Bundle, Card, Record, check_target
from louver.encoders.adapters import Adapted, AdapterOptions, read_description, write_description
from louver.encoders.pooling import HEAD, Reader, encoder_of, separator_of
from louver.errors import BundleError, OptionError
from louver.tasks import Features, task_of
from louver.text import Tokenizer
from louver.text.tokenizer import SOFT_PROMPT, write_setting
from louver.training.written import write_reader
from louver.versions import versions

DIRECTORY = "adapter"
"""In a bundle: the small files."""
_OF_TASK = ("task", "kind", "inputs", "labels", "thresholds", "pooling", "truncation", "bottleneck", "prompt")
"""What a card says of the task that an adapter was trained for."""


class Adapting:
    """A reader whose encoder gets an adapter, from before training until it is written.

    Args:
        reader: its encoder is frozen, and gets new weights.
        options: which ones.
        source: the bundle that the encoder is of.

    Raises:
        OptionError: if the bundle has a soft prompt or a bottleneck already, and another one is wanted.
    """

    def __init__(self, reader: Reader, options: AdapterOptions, source: Bundle) -> None:
        there = "bottleneck" if source.card.bottleneck else "prompt" if Tokenizer.open(source.path).prompted else ""
        if options.kind == there:
            raise OptionError(f"{source.path} has a {there} adapter already; take another kind, or an earlier bundle")
        self.reader, self.options, self.base = reader, options, source.digest
        self.whole = sum(p.numel() for p in reader.parameters())
        self.adapted = Adapted(reader.encoder, options)
        self._scratch = tempfile.TemporaryDirectory(prefix="louver-adapter-")

    def reads(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer that puts a soft prompt before every text."""
        return replace(tokenizer, prefix=tokenizer.prefix + self.adapted.prefix)

    def merge(self, some: Features) -> dict[str, Any]:
        """Keep the small files, and make the encoder an ordinary one.

        Args:
            some: texts on which both are compared.

        Returns:
            Counts of trained weights, and the largest difference of outputs, |Δ| / (1 + max |output|).
        """
        few = some.first(16)
        head = 0 if self.reader.head is None else sum(p.numel() for p in self.reader.head.parameters())
        counts = {"adapter_weights": self.adapted.trainable, "head_weights": head, "all_weights": self.whole}
        before = few.answers(self.reader)
        self.adapted.save(self._files)
        device = self.reader.encoder.device
        self.reader.encoder = self.adapted.merge().to(device)
        gaps = [
            float(np.abs(a - b).max() / (1 + np.abs(a).max()))
            for a, b in zip(before, few.answers(self.reader), strict=True)
        ]
        size = sum(f.stat().st_size for f in self._files.rglob("*") if f.is_file())
        return {**counts, "merged_max_difference": max(gaps), "files_mb": round(size / 1e6, 3)}

    def of_card(self, card: Card) -> Card:
        """Return the card of a bundle whose encoder keeps a bottleneck."""
        return card.model_copy(update={"bottleneck": self.options.size}) if self.options.kind == "bottleneck" else card

    def write(self, draft: Path, card: Card) -> None:
        """Put the small files into a bundle that is being written, with a head of their own."""
        target = draft / DIRECTORY
        shutil.copytree(self._files, target)
        if (draft / HEAD).is_file():
            shutil.copyfile(draft / HEAD, target / HEAD)
        about = {name: value for name, value in card.model_dump(mode="json").items() if name in _OF_TASK}
        write_description(target, self.options, self.base, about)
        _write_prompt(draft, self.adapted.prefix)
        self._scratch.cleanup()

    @property
    def _files(self) -> Path:
        return Path(self._scratch.name) / DIRECTORY


def attach(base: Bundle | str | Path, adapter: str | Path, *, into: str | Path, replace: bool = False) -> Bundle:
    """Put an adapter's small files and head onto the bundle that they were trained on.

    Args:
        base: that bundle, by content; wherever it lies.
        adapter: the directory ``adapter`` of a bundle that was trained with one.
        into: directory of the new bundle.
        replace: write over an old bundle.

    Raises:
        BundleError: if `adapter` is none, or was trained on another bundle.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = base if isinstance(base, Bundle) else Bundle.open(base)
    reader, adapted, card = _attached(source, Path(adapter))
    record = Record(
        step="attach",
        settings=adapted.options.model_dump(),
        parents=[source.digest],
        seconds=time.perf_counter() - began,
        versions=versions(),
    )
    card = card.model_copy(update={"history": [*card.history, record]})
    return write_reader(
        reader, source, card, into, replace=replace, also=lambda draft: _write_prompt(draft, adapted.prefix)
    )


def _attached(source: Bundle, adapter: Path) -> tuple[Reader, Adapted, Card]:
    options, digest, about = read_description(adapter)
    if digest != source.digest:
        raise BundleError(
            f"{adapter} was trained on the bundle {digest[:12]}…, and {source.path} is {source.digest[:12]}…; "
            "give the one that it was trained on"
        )
    card = source.card.model_copy(update=about)
    encoder = encoder_of(source)
    try:
        adapted = Adapted(encoder, options, trained=adapter)
        outputs = 0 if card.task == "embed" else task_of(card).outputs
        separator = separator_of(source.path, encoder) if card.inputs == "pair" else None
        reader = Reader(adapted.merge(), card.pooling, outputs, separator=separator)
        if reader.head is not None:
            reader.head.load_state_dict(load_file(adapter / HEAD))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BundleError(f"the files in {adapter} do not fit ({reason}); copy them again from the bundle") from error
    return reader.eval(), adapted, card


def _write_prompt(draft: Path, prefix: tuple[int, ...]) -> None:
    """Tell the tokenizer of a bundle which ids stand before every text."""
    if prefix:
        write_setting(draft, SOFT_PROMPT, list(prefix))
