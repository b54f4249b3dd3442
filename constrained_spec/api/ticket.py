"""A request under way, as its caller holds it: an iterator of pieces, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from constrained_spec.api.result import Piece, Result
from constrained_spec.engine.job import Job, RoundEvent

T_co = TypeVar("T_co", covariant=True)


class Ticket(Generic[T_co]):
    """Iterate it, or ask for its ``result``. For one consumer; any thread or event loop may be it.

    Leaving an iteration early does not end the request: ``cancel`` does. An error of the request is raised where its
    pieces, or its result, are waited for.
    """

    def __init__(self) -> None:
        self._events: deque[RoundEvent] = deque()
        self._error: Exception | None = None
        self._over = False
        self._condition = threading.Condition()
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._result: Result[T_co] | None = None
        self._job: Job | None = None
        self._finish: Callable[[Job], Result[T_co]] | None = None
        self._cancel: Callable[[Job], None] | None = None

    def bind(
        self, job: Job, finish: Callable[[Job], Result[T_co]], cancel: Callable[[Job], None]
    ) -> None:  # before the job is submitted
        self._job, self._finish, self._cancel = job, finish, cancel

    # ---- for the caller -------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Number of the request within its engine; -1 until the engine has seen it."""
        return self._own.number

    @property
    def prompt_tokens(self) -> int:
        return len(self._own.prompt)

    @property
    def seed(self) -> int:
        return self._own.coins.seed

    def cancel(self) -> None:
        """Give the request up, within a round. Waiting for it then raises ``RequestCancelled``; safe to repeat."""
        assert self._cancel is not None
        self._cancel(self._own)

    def result(self, timeout: float | None = None) -> Result[T_co]:
        """Wait for the end. Raises what the request failed with, and ``TimeoutError`` after ``timeout`` seconds."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._over, timeout):
                raise TimeoutError(f"the request is not finished after {timeout} s")
        return self._end()

    async def aresult(self) -> Result[T_co]:
        """As ``result``."""
        while not self._over:
            await self._sleep(lambda: self._over)
        return self._end()

    def __iter__(self) -> Iterator[Piece[T_co]]:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._events or self._over)
                event = self._events.popleft() if self._events else None
            if event is None:
                self._raise()
                return
            yield self._piece(event)

    async def __aiter__(self) -> AsyncIterator[Piece[T_co]]:
        while True:
            await self._sleep(lambda: bool(self._events) or self._over)
            with self._condition:
                event = self._events.popleft() if self._events else None
                over = self._over
            if event is not None:
                yield self._piece(event)
            elif over:
                self._raise()
                return

    # ---- for the engine's thread ----------------------------------------------------------------------------------

    def event(self, event: RoundEvent) -> None:
        with self._condition:
            self._events.append(event)
            self._over = event.finished
            self._rouse()

    def failed(self, error: Exception) -> None:
        with self._condition:
            self._error = error
            self._over = True
            self._rouse()

    # ---- inside ---------------------------------------------------------------------------------------------------

    @property
    def _own(self) -> Job:
        assert self._job is not None
        return self._job

    def _rouse(self) -> None:
        self._condition.notify_all()
        sleepers, self._sleepers = self._sleepers, []
        for loop, future in sleepers:
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:  # its loop is closed: nobody waits there any more
                continue

    async def _sleep(self, ready: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        with self._condition:
            if ready():
                return
            future: asyncio.Future[None] = loop.create_future()
            self._sleepers.append((loop, future))
        await future

    def _piece(self, event: RoundEvent) -> Piece[T_co]:
        commit = event.commit
        result = self._end() if event.finished else None
        return Piece(event.text, commit.tokens, commit.origins, event.at, result, event.logprobs, event.inspection)

    def _end(self) -> Result[T_co]:
        self._raise()
        with self._condition:
            if self._result is None:
                assert self._finish is not None
                self._result = self._finish(self._own)
            return self._result

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
