"""Compiling the constraints of strangers: in processes that can be ended, a few at a time, remembered.

The engine compiles what it is given in the thread that submits. So a constraint is first compiled in a process of its
own, under limits of time and memory; what passes is compiled here too, which then takes as long and no longer. One
hostile constraint keeps one process busy for ``compile_seconds`` at most: requests with a known constraint, or with
none, do not wait for it.
"""

from __future__ import annotations

import hashlib
import pickle
import queue
import threading
import time
from collections import OrderedDict

import anyio
import anyio.to_thread

from constrained_spec.errors import OverloadedError, RequestError
from constrained_spec.grammars.budget import Budget, check_text
from constrained_spec.grammars.compile import Constraint, compile_constraint
from constrained_spec.grammars.guard import Worker, portable
from constrained_spec.server.errors import answer
from constrained_spec.server.metrics import Metrics
from constrained_spec.types import Vocabulary

REMEMBERED = 4096


class Compiler:
    """Compiles for one vocabulary. ``workers`` processes are started as they are needed."""

    def __init__(self, vocabulary: Vocabulary, budget: Budget, metrics: Metrics, *, workers: int, waiting: int) -> None:
        """At most ``waiting`` constraints wait for a process; the next one is refused with ``OverloadedError``."""
        self._vocabulary = vocabulary
        self._budget = budget
        self._metrics = metrics
        self._most = waiting
        self._all = tuple(Worker() for _ in range(workers))
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._free.put(worker)
        self._limiter = anyio.CapacityLimiter(workers)
        self._lock = threading.Lock()
        # Content of a constraint to the error it led to; None: it compiled.
        self._known: OrderedDict[bytes, RequestError | None] = OrderedDict()
        self._pending: dict[bytes, anyio.Event] = {}  # set when it is over; used in one event loop

    @property
    def waiting(self) -> int:
        """Constraints that wait for a process."""
        return self._limiter.statistics().tasks_waiting

    async def compile(self, constraint: Constraint, tokenization: str) -> None:
        """Compile ``constraint``, so that the engine finds it done. Raises ``RequestError``, ``OverloadedError``."""
        key = _key(constraint, tokenization)
        while key in self._pending:  # many requests with one new constraint compile it once
            await self._pending[key].wait()
        if self._remembered(key):
            self._metrics.cache_hit()
            return
        if self.waiting >= self._most:
            raise OverloadedError("too many constraints wait to be compiled", retry_after=self._budget.compile_seconds)
        over = self._pending[key] = anyio.Event()
        try:
            await anyio.to_thread.run_sync(self._compile, constraint, tokenization, key, limiter=self._limiter)
        finally:
            del self._pending[key]
            over.set()

    def warm_up(self, constraint: Constraint) -> None:
        """Start one process, so that the first constraint need not wait for it. Blocks."""
        self._all[0].check(constraint, self._vocabulary, self._budget, "any")

    def close(self) -> None:
        """End the processes."""
        for worker in self._all:
            worker.close()

    def _compile(self, constraint: Constraint, tokenization: str, key: bytes) -> None:
        started = time.perf_counter()
        worker = self._free.get_nowait()  # there are as many as the limiter lets in
        try:
            check_text(constraint, self._budget)
            worker.check(constraint, self._vocabulary, self._budget, tokenization)
            compile_constraint(constraint, self._vocabulary, tokenization=tokenization)
        except RequestError as error:
            self._metrics.refused(answer(error).code)
            self._remember(key, error)
            raise
        finally:
            self._free.put(worker)
        self._metrics.compiled(time.perf_counter() - started)
        self._remember(key, None)

    def _remembered(self, key: bytes) -> bool:
        """Whether it compiled before. Raises the error that it led to."""
        with self._lock:
            if key not in self._known:
                return False
            self._known.move_to_end(key)
            error = self._known[key]
        if error is not None:
            raise error.with_traceback(None)
        return True

    def _remember(self, key: bytes, outcome: RequestError | None) -> None:
        with self._lock:
            self._known[key] = outcome
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


def _key(constraint: Constraint, tokenization: str) -> bytes:
    try:
        content = pickle.dumps((portable(constraint), tokenization))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"the constraint cannot be compiled: {error}", param="output_type") from None
    return hashlib.blake2b(content, digest_size=16).digest()
