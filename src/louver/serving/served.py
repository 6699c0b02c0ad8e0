"""`Served`: one bundle with its tokenizer, its batcher and its workers; texts in, answers out. No HTTP in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from louver.bundle import Bundle
from louver.decode import Prediction
from louver.errors import LouverError, OptionError
from louver.runtime.engine import branches_of, engine_of, usable_cores
from louver.runtime.reading import Read, Reading
from louver.serving.batcher import Batcher, Call, Row
from louver.serving.crew import CallError, Job, Worker, WorkerDiedError
from louver.text import Truncation

Result = TypeVar("Result")


class Limits(BaseModel):
    """How much work is taken on, and how it is spread."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    workers: int | None = Field(None, ge=1)
    """Processes that compute, a core each; all cores if None, one where torch or a GPU computes."""
    long_workers: int = Field(1, ge=0)
    """Further processes for long rows, which step back behind the others (where a bundle reads as far)."""
    long_from: int = Field(1024, ge=1)
    """Tokens from which a row is long."""
    batch_tokens: int = Field(4096, ge=1)
    """Tokens a call, padding included; a longer row goes alone."""
    window_ms: float = Field(50.0, ge=0)
    """How long a row may be passed over for others that fit together better."""
    queue: int = Field(512, ge=1)
    """Texts that may be in the house; more are refused before any work is done."""
    request_texts: int = Field(256, ge=1)
    """Texts a request."""
    request_tokens: int = Field(262_144, ge=1)
    """Tokens a request, over all its texts."""
    text_characters: int = Field(2_000_000, ge=1)
    """Characters a text."""
    body_bytes: int = Field(16 << 20, ge=1)
    """Bytes of a request."""
    timeout_s: float = Field(60.0, gt=0)
    """Until a request has its answer."""


class OverloadedError(LouverError):
    """There is too much work in the house already."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLargeError(LouverError, ValueError):
    """A request that asks for more than one request may."""


class UnavailableError(LouverError, RuntimeError):
    """The work could not be done now; asking again may help."""


@dataclass
class Timing:
    """Where a request's time went, in seconds: of several texts, the longest one's."""

    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0


@dataclass
class Answers:
    """What a request gets.

    Attributes:
        predictions: one a text, in order; a text that failed has its `error`.
        read: the texts as the model got them.
        timing: where the time went.
    """

    predictions: list[Prediction]
    read: list[Read]
    timing: Timing


class Served:
    """A bundle that answers.

    Args:
        bundle: opened and verified.
        name: that requests use.
        limits: how much is taken on.
        truncation: what to do with longer texts than the model reads; the bundle's own policy if None.
        engine: what runs the ids; by the bundle's files if None.
        seen: told of every call of the engine.

    Raises:
        OptionError: if the engine does not run this bundle.
    """

    def __init__(
        self,
        bundle: Bundle,
        name: str,
        limits: Limits,
        *,
        truncation: str | None = None,
        engine: str | None = None,
        seen: Callable[[Call], None] = lambda _: None,
    ) -> None:
        self.bundle, self.name, self.limits = bundle, name, limits
        self.card = bundle.card
        self.engine = engine_of(bundle, engine)
        self.reading = Reading(bundle, truncation)
        self.in_house = 0
        self._seen = seen
        self._tokenizers = ThreadPoolExecutor(usable_cores(), "louver-tokenizer")
        self.workers: list[Worker] = []
        self.long_workers: list[Worker] = []
        self._batcher: Batcher | None = None
        self._rate = 0.0  # texts a second, lately
        self._gone = 0.0

    async def start(self) -> None:
        """Start the workers and wait until each has answered.

        Raises:
            BundleError: if one does not come up.
        """
        cores = usable_cores()
        graphs = bool(self.card.onnx)  # torch uses all cores, or the GPU, for one call
        count = self.limits.workers or (cores if graphs else 1)
        splits = graphs and self.card.max_length > self.limits.long_from
        shared: dict[str, Any] = {"threads": cores, "engine": self.engine, "call_s": self.limits.timeout_s}
        job = Job(self.bundle.path, **shared)
        slow = Job(self.bundle.path, niceness=10, **shared)
        self.workers = [Worker(job) for _ in range(count)]
        self.long_workers = [Worker(slow) for _ in range(self.limits.long_workers if splits else 0)]
        ready = (worker.start() for worker in (*self.workers, *self.long_workers))
        # the tokenizer's first text takes a tenth of a second
        await asyncio.gather(*ready, self.read([("a", "b") if self.card.inputs == "pair" else "a"]))
        self._batcher = Batcher(
            branches_of(self.bundle),
            self.workers,
            long_workers=self.long_workers,
            long_from=self.limits.long_from,
            max_tokens=self.limits.batch_tokens,
            window_s=self.limits.window_ms / 1000,
            alone=not self.card.batch_invariant,
            seen=self._seen,
        )

    async def answer(self, texts: Sequence[object], truncation: str | None = None) -> Answers:
        """Answer texts; one that fails has its error in its answer, and the others have theirs.

        Args:
            texts: strings, or pairs of them where the bundle reads pairs.
            truncation: another policy for this request.

        Raises:
            OptionError: if there is no such policy.
            TooLargeError: if the request asks for more than one may.
            OverloadedError: if the house is full.
            UnavailableError: if a worker died, or time ran out.
        """
        self.admit(texts)
        self.in_house += len(texts)
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await self._answer(texts, None if truncation is None else Truncation.named(truncation))
        except TimeoutError as error:
            raise UnavailableError(
                f"no answer within {self.limits.timeout_s:g} s; send fewer or shorter texts, or ask again"
            ) from error
        except WorkerDiedError as error:
            raise UnavailableError("the worker that had this request died and is being replaced; ask again") from error
        finally:
            self.in_house -= len(texts)
            self._count(len(texts))

    async def close(self) -> None:
        """Stop the workers."""
        if self._batcher is not None:
            await self._batcher.close()
        await asyncio.gather(*(worker.close() for worker in (*self.workers, *self.long_workers)))
        self._tokenizers.shutdown(wait=False)

    async def read(self, texts: Sequence[object], truncation: Truncation | None = None) -> list[Read]:
        """Tokenize texts, beside the event loop."""
        return await self.beside(lambda: self.reading.read(texts, truncation))

    async def beside(self, work: Callable[[], Result]) -> Result:
        """Run work of the tokenizer on one of its threads, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, work)

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return 0 if self._batcher is None else self._batcher.waiting

    def admit(self, texts: Sequence[object]) -> None:
        """Refuse what is too much, before any work is done.

        Raises:
            OptionError: if there is no text.
            TooLargeError: if the request asks for more than one may.
            OverloadedError: if the house is full.
        """
        limits = self.limits
        if not texts:
            raise OptionError("a request has at least one text, got none")
        if len(texts) > limits.request_texts:
            raise TooLargeError(f"a request has at most {limits.request_texts} texts, got {len(texts)}; send several")
        for number, text in enumerate(texts, 1):
            parts = text if isinstance(text, tuple | list) else (text,)
            characters = sum(len(part) for part in parts if isinstance(part, str))
            if characters > limits.text_characters:
                raise TooLargeError(
                    f"text {number} has {characters} characters, and at most {limits.text_characters} are taken; cut it"
                )
        if self.in_house + len(texts) > limits.queue:
            wait = min(30.0, max(1.0, self.in_house / self._rate if self._rate else 1.0))
            raise OverloadedError(
                f"{self.in_house} texts are in the house and at most {limits.queue} fit; ask again in {wait:.0f} s",
                wait,
            )

    async def _answer(self, texts: Sequence[object], truncation: Truncation | None) -> Answers:
        timing = Timing()
        began = time.monotonic()
        read = await self.read(texts, truncation)
        timing.tokenization = time.monotonic() - began
        tokens = sum(one.tokens for one in read)
        if tokens > self.limits.request_tokens:
            raise TooLargeError(
                f"a request has at most {self.limits.request_tokens} tokens, got {tokens}; send several requests"
            )
        tasks = [asyncio.create_task(self._one(one, timing)) for one in read]
        try:
            predictions = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return Answers(predictions, read, timing)

    async def _one(self, read: Read, timing: Timing) -> Prediction:
        if read.error is not None:
            return self.reading.answer(read, [])
        assert self._batcher is not None, "answers are asked for after start"
        try:
            rows: list[Row] = await self._batcher.run(read.fitted.pieces)
        except CallError as error:
            return Prediction(error=f"the model failed on this text: {error}")
        done = time.monotonic()
        timing.queue = max(timing.queue, *(row.started - row.arrived for row in rows))
        timing.inference = max(timing.inference, done - min(row.started for row in rows))
        return self.reading.answer(read, [row.done.result() for row in rows])

    def _count(self, texts: int) -> None:
        """Keep the rate of the last texts, for `Retry-After`."""
        now = time.monotonic()
        if self._gone:
            self._rate = 0.9 * self._rate + 0.1 * texts / max(now - self._gone, 1e-3)
        self._gone = now
