"""The one thread that owns the model: others hand it requests, it runs rounds as long as there are any.

If the thread breaks, every pending request fails with ``EngineError`` and a fresh scheduler takes over, once. A second
time the engine has failed, and says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeVar

from constrained_spec.engine.job import Job
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.engine.snapshot import Snapshot
from constrained_spec.errors import EngineError, OverloadedError, RequestCancelled

T = TypeVar("T")
RESTARTS = 1


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests are served. ``reason`` says what the latest failure of the engine's thread was."""

    status: Literal["ready", "failed", "closed"]
    restarts: int
    reason: str | None


class Worker:
    """Safe under threads. The thread starts with the first request, and ends with ``close``."""

    def __init__(self, build: Callable[[], Scheduler], *, queue: int | None = None) -> None:
        """``build`` makes a scheduler with every slot free; called here and after a crash. ``queue`` bounds the
        requests that wait for a slot.
        """
        self._build = build
        self.queue = queue
        self._scheduler = build()
        self._condition = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._cancelled: deque[Job] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._drain = True
        self._failed = False
        self._restarts = 0
        self._reason: str | None = None

    # ---- from any thread ------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Raises ``OverloadedError`` if too many wait, ``EngineError`` if the engine failed or was closed."""
        with self._condition:
            self._require_open()
            waiting = self._scheduler.waiting + len(self._inbox)
            if self.queue is not None and waiting >= self.queue + self._scheduler.free_slots:
                raise OverloadedError(
                    f"{waiting} requests are waiting already",
                    retry_after=max(1.0, self._scheduler.expected_wait(waiting)),
                    hint="come again later, or serve with a longer queue",
                )
            self._inbox.append(job)
            self._wake()

    def cancel(self, job: Job) -> None:
        """Give ``job`` up, between two rounds; nothing happens if it is over."""
        with self._condition:
            self._cancelled.append(job)
            self._condition.notify_all()

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engine's thread between two rounds, and wait for it."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        with self._condition:
            self._require_open()
            self._calls.append(run)
            self._wake()
        return future.result()

    def health(self) -> Health:
        with self._condition:
            status: Literal["ready", "failed", "closed"] = "ready"
            if self._failed:
                status = "failed"
            elif self._closing:
                status = "closed"
            return Health(status, self._restarts, self._reason)

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests. ``drain`` lets the present ones end, at most ``timeout`` seconds; the rest is
        cancelled.
        """
        with self._condition:
            self._closing = True
            self._drain = drain
            self._condition.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout if drain else None)
        if thread.is_alive():
            with self._condition:
                self._drain = False
                self._condition.notify_all()
            thread.join()

    def _require_open(self) -> None:
        if self._failed:
            raise EngineError(f"the engine has failed: {self._reason}", hint="restart the process")
        if self._closing:
            raise EngineError("the engine is closed")

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="constrained-spec-engine", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    # ---- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                if not self._turn():
                    return
            except BaseException as error:  # a fault of ours: nothing of a request's own gets here
                if not self._recover(error):
                    return

    def _turn(self) -> bool:
        """Take what came in, then one step. False: closed and done."""
        with self._condition:
            while not (self._inbox or self._cancelled or self._calls) and self._scheduler.idle:
                if self._closing:
                    return False
                self._condition.wait()
            calls, jobs, cancelled = list(self._calls), list(self._inbox), list(self._cancelled)
            self._calls.clear()
            # Counted by ``submit`` until the scheduler counts them.
            for job in jobs:
                self._scheduler.add(job)
            self._inbox.clear()
            self._cancelled.clear()
            stop = self._closing and not self._drain
        for call in calls:
            call()
        for job in cancelled:
            self._scheduler.cancel(job)
        if stop:
            self._scheduler.abort(RequestCancelled("the engine is closing"), "cancelled")
            return True
        self._scheduler.step()
        return True

    def _recover(self, error: BaseException) -> bool:
        """Fail what is pending; start again with a fresh scheduler, or give up. Says whether to go on."""
        again = self._restarts < RESTARTS
        fresh, reason = None, f"{type(error).__name__}: {error}"
        if again:
            try:
                fresh = self._build()
            except BaseException as second:
                again, reason = False, f"{reason}; then {type(second).__name__}: {second}"
        with self._condition:
            self._reason = reason
            self._restarts += again
            self._failed = not again
            jobs = list(self._inbox)
            self._inbox.clear()
            calls = list(self._calls)
            self._calls.clear()
        lost = EngineError(f"the engine's thread broke: {self._reason}")
        lost.__cause__ = error
        self._scheduler.abort(lost)
        for job in jobs:
            job.sink.failed(lost)
        for call in calls:
            call()
        if fresh is not None:
            self._scheduler = fresh
        return again
