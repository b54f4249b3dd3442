"""Compilation that can be cancelled: first in a process of its own, under a limit of time and memory, then here.

A thread cannot be ended, and the engines cannot be interrupted, so nothing else stops a constraint that takes minutes.
The process stays for the next constraint; it is ended when a limit is exceeded and when this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from typing import IO, Any

from constrained_spec.errors import ConfigError, ConstrainedSpecError, GrammarBudgetError, RequestError
from constrained_spec.grammars.automaton import TableAutomaton
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.budget import DEFAULT, Budget, check_states, check_text
from constrained_spec.grammars.compile import Constraint, compile_constraint
from constrained_spec.grammars.constraints import JsonSchema
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.json_schema import canonical_text
from constrained_spec.types import Vocabulary

START_SECONDS = 120.0  # for the process to start, or to take in a vocabulary
MAX_REMEMBERED = 4096
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a pool of threads maps much address space


def compile_guarded(
    constraint: Constraint,
    vocabulary: Vocabulary,
    seconds: float | None = None,
    *,
    budget: Budget = DEFAULT,
    tokenization: str = "any",
) -> Grammar:
    """``compile_constraint`` for a constraint that nobody vouches for. ``seconds`` overrides the budget's.

    Raises what ``compile_constraint`` does, ``GrammarBudgetError`` for a limit of ``budget`` (``limit`` is its name),
    and ``RequestError`` if the constraint makes the compiler crash.
    """
    if seconds is not None:
        budget = dataclasses.replace(budget, compile_seconds=seconds)
    check_text(constraint, budget)
    _WORKER.check(constraint, vocabulary, budget, tokenization)
    grammar = compile_constraint(constraint, vocabulary, tokenization=tokenization)
    if isinstance(grammar, DfaGrammar) and isinstance(grammar.automaton, TableAutomaton):  # a trie has its text's size
        check_states(grammar.automaton.size, budget)
    return grammar


class _Dead(Exception):
    """The process ended before it answered."""


class Worker:
    """One process, started when it is first needed; threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = 0  # the process id that started it: after a fork, the child starts its own
        self._known: set[str] = set()  # digests of vocabularies that it holds
        self._passed: OrderedDict[str, float] = OrderedDict()  # seconds that a constraint took

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def check(self, constraint: Constraint, vocabulary: Vocabulary, budget: Budget, tokenization: str) -> None:
        """Return if the constraint compiles, or is refused, within the limits. Errors as in ``compile_guarded``."""
        try:
            # A schema may be a class of the caller's, which the other process cannot import.
            frame = pickle.dumps(portable(constraint))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RequestError(f"the constraint cannot be compiled under guard: {error}", param="output_type") from None
        content = frame + repr((vocabulary.digest, tokenization, budget.memory_bytes)).encode()
        key = hashlib.blake2b(content, digest_size=16).hexdigest()
        with self._lock:
            if self._passed.get(key, budget.compile_seconds + 1) <= budget.compile_seconds:
                self._passed.move_to_end(key)
                return
            self._passed[key] = self._try(constraint, vocabulary, budget, tokenization)
            while len(self._passed) > MAX_REMEMBERED:
                self._passed.popitem(last=False)

    def close(self) -> None:
        """End the process; the next check starts another."""
        with self._lock:
            self._stop()

    def _try(self, constraint: Constraint, vocabulary: Vocabulary, budget: Budget, tokenization: str) -> float:
        """Seconds that the compilation took, success or refusal."""
        request = ("compile", vocabulary.digest, portable(constraint), tokenization, budget.memory_bytes)
        try:
            try:
                answer = self._submit(request, vocabulary, budget)
            except _Dead as error:
                if _is_memory(str(error)):
                    raise
                # It may have ended before it read this constraint; a second end is the constraint's doing.
                answer = self._submit(request, vocabulary, budget)
        except TimeoutError:
            raise GrammarBudgetError(
                f"the constraint does not compile within {budget.compile_seconds:g} s", limit="compile_seconds",
                hint="simplify it, or raise compile_seconds",
            ) from None  # fmt: skip
        except _Dead as error:
            if _is_memory(str(error)):
                raise _memory_error(budget) from None
            raise RequestError(
                f"the constraint makes the compiler crash ({error})", param="output_type", hint="simplify it"
            ) from None
        outcome = answer.get("outcome")
        if outcome == "memory":
            self._stop()  # what ran out of memory half way is not trusted with the next constraint
            raise _memory_error(budget)
        if outcome == "failed":
            raise RequestError(f"the compiler failed on the constraint: {answer.get('message')}", param="output_type")
        return float(answer["seconds"])

    def _submit(self, request: tuple[object, ...], vocabulary: Vocabulary, budget: Budget) -> dict[str, Any]:
        self._ready(vocabulary)
        answer = self._ask(request, budget.compile_seconds)
        if "unknown" in answer:  # it kept newer vocabularies instead
            self._known.discard(vocabulary.digest)
            self._ready(vocabulary)
            answer = self._ask(request, budget.compile_seconds)
        return answer

    def _ready(self, vocabulary: Vocabulary) -> None:
        """A running process that holds ``vocabulary``."""
        if self.pid is None or self._owner != os.getpid():
            self._start()
        if vocabulary.digest not in self._known:
            request = ("vocabulary", vocabulary.tokens, vocabulary.eos_ids, dict(vocabulary.special))
            try:
                answer = self._ask(request, START_SECONDS)
            except (_Dead, TimeoutError) as error:
                raise ConstrainedSpecError(f"the compiling process cannot hold the vocabulary: {error}") from None
            assert answer["digest"] == vocabulary.digest
            self._known.add(vocabulary.digest)

    def _start(self) -> None:
        self._stop()
        if not sys.executable:
            raise ConfigError("a guarded compilation needs a Python interpreter to start", param="compile_seconds")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)  # it finds what is found here, in the same order
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "constrained_spec.grammars.guard_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=os.environ | _SINGLE_THREADED | {"PYTHONPATH": path},
        )  # fmt: skip
        self._owner = os.getpid()
        try:
            self._receive(START_SECONDS)
        except (_Dead, TimeoutError) as error:
            raise ConstrainedSpecError(f"the compiling process does not start: {error}") from None

    def _stop(self) -> None:
        process, self._process = self._process, None
        self._known.clear()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            if self._owner == os.getpid():
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _ask(self, request: tuple[object, ...], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None
        frame = pickle.dumps(request)
        with contextlib.suppress(BrokenPipeError):  # it died, and the answer says how
            process.stdin.write(len(frame).to_bytes(8, "little") + frame)
            process.stdin.flush()
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises ``TimeoutError`` or ``_Dead`` (with what it said last); both end the process."""
        process = self._process
        assert process is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if line.endswith(b"\n") and not late.is_set():
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        said = self._said()
        self._stop()
        if late.is_set():
            raise TimeoutError(f"no answer within {seconds:g} s")
        raise _Dead(f"{_ending(code)}{said}")

    def _said(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read()[-20_000:].decode(errors="replace").strip().splitlines()
        # What a crash means stands in its first line; behind it come the frames of the stack.
        telling = [line for line in lines if "memory" in line or "panicked" in line or "Error" in line] or lines[-1:]
        return f": {telling[-1].strip()}" if telling else ""


def portable(value: Any) -> Any:
    """``value`` with every schema in it as JSON text, so that it can be sent to another process."""
    if isinstance(value, JsonSchema):
        registry = value.registry and {uri: canonical_text(schema) for uri, schema in value.registry.items()}
        return dataclasses.replace(value, schema=canonical_text(value.schema), registry=registry)
    if isinstance(value, tuple):
        return tuple(map(portable, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, portable(getattr(value, field.name)))
        return twin
    return value


def _is_memory(how: str) -> bool:
    """An end that ``how`` tells of was for want of memory."""
    return "memory" in how.lower()


def _memory_error(budget: Budget) -> GrammarBudgetError:
    return GrammarBudgetError(
        f"the constraint does not compile within {budget.memory_bytes} bytes of memory",
        limit="memory_bytes",
        hint="simplify it, or raise memory_bytes",
    )


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


_WORKER = Worker()
atexit.register(_WORKER.close)
