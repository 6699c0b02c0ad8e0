"""`Batcher`: rows of many requests, computed together where their lengths fit. No HTTP in it.

A worker that has nothing to do takes what is there at once; while all are busy, rows gather, and the next free worker
takes those that fit best together. Rows that have waited for longer than a window go first, so that no length starves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from louver.runtime.schedule import Branch, schedule
from louver.serving.crew import CallError, WorkerDiedError


class Computes(Protocol):
    """What a batcher asks of a worker; see `louver.serving.crew.Worker`."""

    async def call(self, branch: int, rows: list[np.ndarray], width: int, *, single: bool) -> np.ndarray:
        """Compute one call."""
        ...

    async def restart(self) -> None:
        """Be replaced, after `WorkerDiedError`."""
        ...


@dataclass(eq=False)
class Row:
    """One piece of a text on its way.

    Attributes:
        ids: what the engine gets.
        done: gets its output.
        arrived: when it came, on `time.monotonic`.
        started: when its call began.
        alone: may share no call: it was in one that failed, or the bundle's answers depend on the batch.
    """

    ids: np.ndarray
    done: asyncio.Future[np.ndarray]
    arrived: float = field(default_factory=time.monotonic)
    started: float = 0.0
    alone: bool = False


@dataclass
class Call:
    """What one call was; for metrics.

    Attributes:
        rows: texts, or pieces of them.
        tokens: real ones.
        computed: padding included.
        seconds: that it took.
    """

    rows: int
    tokens: int
    computed: int
    seconds: float


class Lane:
    """A queue of rows, and the workers that serve it.

    Args:
        workers: each serves one call at a time.
        branches: of the engine, by rising limit.
        max_tokens: tokens a call, padding included; a longer row goes alone.
        window_s: how long a row may be passed over for others that fit together better.
        is_idle: says whether nothing else runs in the process.
        seen: told of every call.
    """

    def __init__(
        self,
        workers: Sequence[Computes],
        branches: Sequence[Branch],
        *,
        max_tokens: int,
        window_s: float,
        is_idle: Callable[[], bool],
        seen: Callable[[Call], None],
    ) -> None:
        self.waiting: deque[Row] = deque()
        self.busy = 0
        self._rules = (branches, max_tokens, window_s)
        self._is_idle, self._seen = is_idle, seen
        self._there = asyncio.Event()
        self._tasks = [asyncio.create_task(self._serve(worker)) for worker in workers]

    def put(self, row: Row) -> None:
        """Queue a row."""
        self.waiting.append(row)
        self._there.set()

    async def close(self) -> None:
        """Stop serving; rows that wait are told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _fail(self.waiting, WorkerDiedError("the server closes"))
        self.waiting.clear()

    async def _serve(self, worker: Computes) -> None:
        while True:
            branch, width, rows = await self._next()
            single = len(rows) == 1 and not self.waiting and self._is_idle()
            self.busy += 1
            try:
                await self._compute(worker, branch, width, rows, single=single)
            except WorkerDiedError as error:
                _fail(rows, error)
                await worker.restart()
            except asyncio.CancelledError:
                _fail(rows, WorkerDiedError("the server closes"))
                raise
            except Exception as error:  # of our own: nobody may wait forever for it
                _fail(rows, CallError(f"{type(error).__name__}: {error}"))
            finally:
                self.busy -= 1

    async def _next(self) -> tuple[int, int, list[Row]]:
        while True:
            while self.waiting and self.waiting[0].done.done():  # its client went away
                self.waiting.popleft()
            if not self.waiting:
                self._there.clear()
                await self._there.wait()
                continue
            rows = [row for row in self.waiting if not row.done.done()]
            branch, width, chosen = choose(rows, *self._rules, now=time.monotonic())
            taken = set(map(id, chosen))
            self.waiting = deque(row for row in rows if id(row) not in taken)
            return branch, width, chosen

    async def _compute(self, worker: Computes, branch: int, width: int, rows: list[Row], *, single: bool) -> None:
        began = time.monotonic()
        for row in rows:
            row.started = began
        try:
            found = await worker.call(branch, [row.ids for row in rows], width, single=single)
        except CallError as error:
            if len(rows) == 1:
                _fail(rows, error)
                return
            for row in rows:  # one of them is to blame, the others get their answers
                row.alone = True
            self.waiting.extendleft(reversed(rows))
            self._there.set()
            return
        tokens = sum(len(row.ids) for row in rows)
        self._seen(Call(len(rows), tokens, width * len(rows), time.monotonic() - began))
        for place, row in enumerate(rows):
            if not row.done.done():
                row.done.set_result(found[place] if found.ndim == 2 else found[place, : len(row.ids)])


def _fail(rows: Iterable[Row], error: Exception) -> None:
    for row in rows:
        if not row.done.done():
            row.done.set_exception(error)


def choose(
    rows: Sequence[Row], branches: Sequence[Branch], max_tokens: int, window_s: float, *, now: float
) -> tuple[int, int, list[Row]]:
    """Return what the next call computes: a group as `schedule` makes them, the oldest row's or the one of most tokens.

    Args:
        rows: that wait, the oldest first; at least one.
        branches: of the engine.
        max_tokens: tokens a call, padding included.
        window_s: the oldest row's group comes if that row has waited for longer.
        now: on `time.monotonic`.

    Returns:
        Branch, width, rows.
    """
    rows = rows[:1] if rows[0].alone else [row for row in rows if not row.alone]
    groups = schedule([len(row.ids) for row in rows], branches, max_tokens=max_tokens)
    if now - rows[0].arrived > window_s:
        group = next(group for group in groups if 0 in group.members)
    else:
        group = max(groups, key=lambda group: group.width * len(group.members))
    return group.branch, group.width, [rows[i] for i in group.members]


class Batcher:
    """Rows in, outputs out.

    Args:
        branches: of the engine, by rising limit.
        workers: for short rows, and for all where there are no others.
        long_workers: for rows of more tokens than `long_from`, so that they keep nobody waiting.
        long_from: tokens.
        max_tokens: tokens a call, padding included.
        window_s: how long a row may be passed over.
        alone: no row may share a call, because the bundle's answers depend on the batch.
        seen: told of every call.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        workers: Sequence[Computes],
        *,
        long_workers: Sequence[Computes] = (),
        long_from: float = float("inf"),
        max_tokens: int = 4096,
        window_s: float = 0.05,
        alone: bool = False,
        seen: Callable[[Call], None] = lambda _: None,
    ) -> None:
        self.alone = alone
        self.long_from = long_from if long_workers else float("inf")

        def lane(crew: Sequence[Computes]) -> Lane:
            return Lane(crew, branches, max_tokens=max_tokens, window_s=window_s, is_idle=self._is_idle, seen=seen)

        self._short = lane(workers)
        self._long = lane(long_workers) if long_workers else self._short

    @property
    def waiting(self) -> int:
        """Rows in the queues."""
        return len(self._short.waiting) + (len(self._long.waiting) if self._long is not self._short else 0)

    async def run(self, pieces: Sequence[np.ndarray]) -> list[Row]:
        """Compute the pieces of a text; if the caller is cancelled, those that wait are dropped.

        Returns:
            The rows, done: their outputs, and when each came and began.

        Raises:
            CallError: if the engine raises for a piece by itself.
            WorkerDiedError: if the worker that had it died.
        """
        loop = asyncio.get_running_loop()
        rows = []
        for ids in pieces:
            row = Row(ids, loop.create_future(), alone=self.alone)
            rows.append(row)
            (self._long if len(ids) > self.long_from else self._short).put(row)
        try:
            await asyncio.gather(*(row.done for row in rows))
        except BaseException:
            for row in rows:
                row.done.cancel()
            raise
        return rows

    async def close(self) -> None:
        """Stop serving."""
        for lane in {self._short, self._long}:
            await lane.close()

    def _is_idle(self) -> bool:
        lanes = {self._short, self._long}
        return not any(lane.waiting for lane in lanes) and not any(lane.busy for lane in lanes)
