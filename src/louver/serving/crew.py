"""Supervised worker processes: one that dies or hangs is replaced, and whoever waits for it is told."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from louver.errors import BundleError
from louver.serving.worker import READY, pack_call, unpack_answer, work


class CallError(Exception):
    """The engine raised; the worker lives."""


class WorkerDiedError(Exception):
    """The worker died or did not answer in time; it is being replaced."""


@dataclass
class Job:
    """What a worker is for.

    Attributes:
        bundle: directory of a verified bundle.
        threads: cores that a lone call may use.
        niceness: how far it steps back behind others.
        engine: that it runs; by the bundle's files if None.
        start_s: seconds until it must be ready.
        call_s: seconds until a call must be answered.
    """

    bundle: Path
    threads: int = 1
    niceness: int = 0
    engine: str | None = None
    start_s: float = 120.0
    call_s: float = 60.0


class Worker:
    """One worker process and the thread that talks to it.

    Args:
        job: what it is for.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.restarts = 0
        self._thread = ThreadPoolExecutor(1, "louver-pipe")
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Number of the process, where there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it has answered a call.

        Raises:
            BundleError: if it does not come up.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def restart(self) -> None:
        """Replace the process; tries again, ever more slowly, until one comes up or the worker is closed."""
        self.restarts += 1
        pause = 0.1
        while not self._closed:
            try:
                await self.start()
                return
            except (BundleError, RuntimeError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 10.0)

    async def call(self, branch: int, rows: list[np.ndarray], width: int, *, single: bool) -> np.ndarray:
        """Compute one call.

        Returns:
            (batch, outputs), or (batch, tokens, outputs).

        Raises:
            CallError: if the engine raised.
            WorkerDiedError: if there is no answer.
        """
        frame = pack_call(branch, rows, width, single=single)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, frame)
        if isinstance(found, str):
            raise CallError(found)
        return found

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._stop)
        self._thread.shutdown(wait=False)

    def _start(self) -> None:
        self._stop()
        if self._closed:
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        job = self.job
        arguments = (theirs, str(job.bundle), job.threads, job.niceness, job.engine)
        self._process = context.Process(target=work, args=arguments, name="louver-worker", daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does
        began = time.monotonic()
        while time.monotonic() - began < job.start_s and not self._closed:
            try:
                if self._pipe.poll(0.2):
                    status, _ = struct.unpack_from("<2i", self._pipe.recv_bytes())
                    if status == READY:
                        return
            except (EOFError, OSError):
                break
        code = self._process.exitcode
        self._stop()
        raise BundleError(
            f"a worker for {job.bundle} did not come up (exit code {code}, {time.monotonic() - began:.0f} s); "
            "look at its message above, or try 'louver check' on the bundle"
        )

    def _exchange(self, frame: bytes) -> np.ndarray | str:
        pipe = self._pipe
        try:
            if pipe is None:
                raise EOFError
            pipe.send_bytes(frame)
            if not pipe.poll(self.job.call_s):
                raise EOFError
            return unpack_answer(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            self._stop()
            raise WorkerDiedError from error

    def _stop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(0.2)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            with contextlib.suppress(ValueError):
                self._process.close()
            self._process = None
