"""`House`: the bundles that one server answers with, by name; loaded, replaced and watched while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from louver.bundle import Bundle
from louver.decode import Prediction
from louver.errors import LouverError, OptionError, unknown
from louver.serving.metrics import Metrics
from louver.serving.served import Answers, Limits, Served

_PROBE = "is it ready?"


class UnknownModelError(LouverError, KeyError):
    """No bundle of this name is served."""

    def __str__(self) -> str:
        return str(self.args[0])


class House:
    """Bundles that answer.

    Args:
        bundles: directories by the name that requests use; the first one answers requests without a name.
        limits: how much work is taken on, by each.
        truncation: what to do with longer texts than a model reads; each bundle's own policy if None.
        engine: what runs the ids; by each bundle's files if None.
        shadows: directories of bundles that get the same texts as the one of their name, and answer nobody: what they
            would have said is counted.
        metrics: that count.
    """

    def __init__(
        self,
        bundles: Mapping[str, Path],
        limits: Limits | None = None,
        *,
        truncation: str | None = None,
        engine: str | None = None,
        shadows: Mapping[str, Path] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        if not bundles:
            raise OptionError("a server needs at least one bundle, got none")
        for name in shadows or {}:
            if name not in bundles:
                raise OptionError(f"shadow {name!r} stands beside no bundle; {unknown('bundle', name, bundles)}")
        self.paths = dict(bundles)
        self.limits = limits or Limits()
        self.truncation = truncation
        self.engine = engine
        self.metrics = metrics or Metrics()
        self._shadow_paths = dict(shadows or {})
        self._served: dict[str, Served] = {}
        self._shadows: dict[str, Served] = {}
        self._reloading = asyncio.Lock()
        self._beside: set[asyncio.Task[None]] = set()
        self.draining = False

    async def open(self) -> None:
        """Load every bundle, unless that was done before.

        Raises:
            BundleError: if one cannot be loaded.
        """
        if self._served:
            return
        try:
            for name, path in self.paths.items():
                self._served[name] = await self._load(name, path)
            for name, path in self._shadow_paths.items():
                self._shadows[name] = await self._load(f"{name} (shadow)", path)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Answer what is in the house, then stop."""
        self.draining = True
        end = time.monotonic() + self.limits.timeout_s
        while any(one.in_house for one in self._served.values()) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        for task in self._beside:
            task.cancel()
        for one in (*self._served.values(), *self._shadows.values()):
            await one.close()
        self._served.clear()
        self._shadows.clear()

    @property
    def served(self) -> dict[str, Served]:
        """The bundles, by name."""
        return self._served

    def get(self, name: str | None = None) -> Served:
        """Return a bundle; the first one if no name is given.

        Raises:
            UnknownModelError: if there is none of this name.
        """
        if not self._served:
            raise UnknownModelError("no bundle is loaded yet; ask again")
        if name is None:
            return next(iter(self._served.values()))
        if name not in self._served:
            raise UnknownModelError(unknown("model", name, self._served))
        return self._served[name]

    async def answer(self, name: str | None, texts: Sequence[object], truncation: str | None = None) -> Answers:
        """Answer texts with a bundle; see `Served.answer`."""
        served = self.get(name)
        began = time.monotonic()
        found = await served.answer(texts, truncation)
        self.metrics.answered(served.name, found, time.monotonic() - began)
        if served.name in self._shadows:
            self._shadow(served.name, list(texts), truncation, found, time.monotonic() - began)
        return found

    async def ready(self) -> bool:
        """Say whether every bundle answers a text now."""
        if self.draining or not self._served:
            return False
        for served in list(self._served.values()):
            probe: object = (_PROBE, _PROBE) if served.card.inputs == "pair" else _PROBE
            try:
                (answer,) = (await served.answer([probe], "head")).predictions
            except LouverError:
                return False
            if answer.error is not None:
                return False
        return True

    async def reload(self, name: str | None = None, path: Path | None = None) -> Served:
        """Load a bundle anew, from another directory if one is given, and let it take over; no request is lost.

        Raises:
            UnknownModelError: if there is none of this name.
            BundleError: if it cannot be loaded; then the old one stays.
        """
        async with self._reloading:
            old = self.get(name)
            directory = path or self.paths[old.name]
            fresh = await self._load(old.name, directory)
            self._served[old.name] = fresh
            self.paths[old.name] = directory
        end = time.monotonic() + self.limits.timeout_s
        while old.in_house and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await old.close()
        return fresh

    async def _load(self, name: str, path: Path) -> Served:
        bundle = await asyncio.get_running_loop().run_in_executor(None, Bundle.open, path)
        served = Served(
            bundle,
            name,
            self.limits,
            truncation=self.truncation,
            engine=self.engine,
            seen=lambda call: self.metrics.called(name, call),
        )
        try:
            await served.start()
        except BaseException:
            await served.close()
            raise
        return served

    def _shadow(self, name: str, texts: list[object], truncation: str | None, found: Answers, took: float) -> None:
        """Give a shadow the same texts, unless it is still busy with others."""
        shadow = self._shadows[name]
        if shadow.in_house:
            self.metrics.shadow_skipped(name, len(texts))
            return

        async def ask() -> None:
            began = time.monotonic()
            try:
                other = await shadow.answer(texts, truncation)
            except LouverError:
                self.metrics.shadow_skipped(name, len(texts))
                return
            same = [agree(a, b) for a, b in zip(found.predictions, other.predictions, strict=True)]
            self.metrics.shadowed(name, same, time.monotonic() - began - took)

        task = asyncio.create_task(ask())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def agree(one: Prediction, other: Prediction) -> float:
    """Return how far two answers to a text agree, from 0 to 1.

    Of embeddings it is their cosine, of a number whether it is within 1 %, else whether they are the same.
    """
    if one.error is not None or other.error is not None:
        return float((one.error is None) == (other.error is None))
    if one.embedding is not None and other.embedding is not None:
        if one.embedding.shape != other.embedding.shape:
            return 0.0
        return float(np.clip(one.embedding @ other.embedding, 0, 1))
    if one.value is not None and other.value is not None:
        return float(abs(one.value - other.value) <= 0.01 * max(abs(one.value), 1e-6))
    if one.spans is not None and other.spans is not None:
        return float([span[:3] for span in one.spans] == [span[:3] for span in other.spans])
    if one.answer is not None and other.answer is not None:
        return float(one.answer[:2] == other.answer[:2])
    return float((one.label, one.labels, one.answer) == (other.label, other.labels, other.answer))
