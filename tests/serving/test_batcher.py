"""The batcher with workers of our own making: no process, no model, no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from louver.runtime.schedule import MAX_PADDING, Branch
from louver.serving.batcher import Batcher, Call, Row, choose
from louver.serving.crew import CallError, WorkerDiedError

BRANCHES = [Branch(512), Branch(float("inf"), 128)]


class Fake:
    """Answers each row with the sum of its ids; a row that holds 13 is poison, one that holds 666 kills."""

    def __init__(self, pause: float = 0.0) -> None:
        self.calls: list[tuple[int, list[int], int, bool]] = []
        self.restarts, self.pause = 0, pause
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, branch: int, rows: list[np.ndarray], width: int, *, single: bool) -> np.ndarray:
        self.calls.append((branch, [len(row) for row in rows], width, single))
        await self.gate.wait()
        await asyncio.sleep(self.pause)
        if any(666 in row for row in rows):
            raise WorkerDiedError
        if any(13 in row for row in rows):
            raise CallError("a poisoned row")
        return np.asarray([[float(row.sum())] for row in rows], np.float32)

    async def restart(self) -> None:
        self.restarts += 1


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work()

    return asyncio.run(bounded())


def rows(*lengths: int) -> list[np.ndarray]:
    return [np.full(length, 1, np.int64) for length in lengths]


def test_every_row_gets_its_own_output_whatever_comes_together() -> None:
    async def work() -> None:
        workers = [Fake(), Fake()]
        batcher = Batcher(BRANCHES, workers)
        lengths = np.random.default_rng(0).integers(1, 2000, 300).tolist()
        found = await asyncio.gather(*(batcher.run(rows(length)) for length in lengths))
        assert [int(one[0].done.result()[0]) for one in found] == lengths
        calls = [call for worker in workers for call in worker.calls]
        assert len(calls) < 150
        for branch, members, width, _ in calls:
            assert (branch == 0) == (max(members) <= 512)
            assert len(members) == 1 or len(members) * width <= 4096
            if branch == 0:
                assert 1 - sum(members) / (len(members) * width) <= MAX_PADDING
        await batcher.close()

    run(work)


def test_an_idle_worker_waits_for_nobody_and_may_use_every_core() -> None:
    async def work() -> None:
        worker = Fake()
        batcher = Batcher(BRANCHES, [worker], window_s=10)
        await batcher.run(rows(40))
        assert worker.calls == [(0, [40], 40, True)]
        await asyncio.gather(batcher.run(rows(40)), batcher.run(rows(900)))
        assert [single for *_, single in worker.calls[1:]] == [False, True]
        await batcher.close()

    run(work)


def test_one_poisoned_row_fails_alone() -> None:
    async def work() -> None:
        worker = Fake()
        batcher = Batcher(BRANCHES, [worker])
        many = rows(*[30] * 31)
        poison = np.full(30, 13)
        found = await asyncio.gather(*(batcher.run([one]) for one in [*many, poison]), return_exceptions=True)
        assert sum(isinstance(one, CallError) for one in found) == 1
        assert isinstance(found[-1], CallError)
        answered = [one for one in found[:-1] if not isinstance(one, BaseException)]
        assert [int(one[0].done.result()[0]) for one in answered] == [30] * 31
        await batcher.close()

    run(work)


def test_a_dead_worker_is_replaced_and_those_it_had_are_told() -> None:
    async def work() -> None:
        worker = Fake()
        batcher = Batcher(BRANCHES, [worker])
        with pytest.raises(WorkerDiedError):
            await batcher.run([np.full(30, 666)])
        assert worker.restarts == 1
        (row,) = await batcher.run(rows(7))
        assert row.done.result() == 7
        await batcher.close()

    run(work)


def test_who_goes_away_is_not_computed() -> None:
    async def work() -> None:
        worker = Fake()
        worker.gate.clear()
        batcher = Batcher(BRANCHES, [worker])
        first = asyncio.create_task(batcher.run(rows(100)))
        await asyncio.sleep(0.01)
        gone = [asyncio.create_task(batcher.run(rows(50, 60))) for _ in range(200)]
        stays = asyncio.create_task(batcher.run(rows(200)))
        await asyncio.sleep(0.01)
        assert batcher.waiting == 401
        for task in gone:
            task.cancel()
        await asyncio.sleep(0.01)
        worker.gate.set()
        await asyncio.gather(first, stays)
        assert [members for _, members, _, _ in worker.calls] == [[100], [200]]
        assert batcher.waiting == 0
        await batcher.close()

    run(work)


def test_long_rows_have_workers_of_their_own() -> None:
    async def work() -> None:
        short, long = Fake(), Fake()
        long.gate.clear()
        batcher = Batcher(BRANCHES, [short], long_workers=[long], long_from=1000)
        slow = asyncio.create_task(batcher.run(rows(4000)))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(batcher.run(rows(100)) for _ in range(20)))
        assert not slow.done()
        long.gate.set()
        await slow
        assert [members for _, members, _, _ in long.calls] == [[4000]]
        await batcher.close()

    run(work)


def test_nobody_waits_forever_when_it_closes() -> None:
    async def work() -> None:
        worker = Fake()
        worker.gate.clear()
        batcher = Batcher(BRANCHES, [worker])
        tasks = [asyncio.create_task(batcher.run(rows(10 * n))) for n in range(1, 9)]
        await asyncio.sleep(0.01)
        await batcher.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, WorkerDiedError) for one in found)

    run(work)


def test_calls_are_told_with_their_padding() -> None:
    async def work() -> None:
        seen: list[Call] = []
        batcher = Batcher(BRANCHES, [Fake()], seen=seen.append)
        await batcher.run(rows(600))
        assert [(call.rows, call.tokens, call.computed) for call in seen] == [(1, 600, 640)]
        await batcher.close()

    run(work)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    waited=st.floats(0, 2),
    alone=st.sets(st.integers(0, 59)),
)
def test_what_is_chosen_fits_together(lengths: list[int], waited: float, alone: set[int]) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        waiting = [Row(one, loop.create_future(), 100.0, alone=i in alone) for i, one in enumerate(rows(*lengths))]
        branch, width, chosen = choose(waiting, BRANCHES, 4096, 1.0, now=100.0 + waited)
        assert chosen
        assert len(set(map(id, chosen))) == len(chosen)
        assert len(chosen) == 1 or not any(row.alone for row in chosen)
        assert len(chosen) == 1 or len(chosen) * width <= 4096
        assert all(len(row.ids) <= width and len(row.ids) <= BRANCHES[branch].limit for row in chosen)
        if waited > 1.0 or waiting[0].alone:
            assert any(row is waiting[0] for row in chosen)

    asyncio.run(work())
