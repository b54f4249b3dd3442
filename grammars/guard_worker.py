"""The process in which a guarded compilation runs first: ``python -m constrained_spec.grammars.guard_worker``.

It reads frames from standard input and answers each with one line of JSON on standard output. A frame is a length of
eight bytes, little endian, and a pickle of the parent's: ("vocabulary", tokens, eos_ids, special) or
("compile", digest, constraint, tokenization, memory_bytes). It ends when its input does.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from constrained_spec.errors import ConstrainedSpecError
from constrained_spec.grammars.compile import Constraint, compile_constraint
from constrained_spec.grammars.tokens import token_index
from constrained_spec.types import Vocabulary

MAX_VOCABULARIES = 2


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    vocabularies: OrderedDict[str, Vocabulary] = OrderedDict()
    _answer(answers.write, answers.flush, {"ready": True})
    while (frame := _read(sys.stdin.buffer)) is not None:
        try:
            kind, *rest = pickle.loads(frame)
        except Exception as error:  # a value of the caller's own class, which cannot be imported here
            message = f"it cannot be sent to another process: {type(error).__name__}: {error}"
            _answer(answers.write, answers.flush, {"outcome": "failed", "message": message})
            continue
        if kind == "vocabulary":
            vocabulary = _vocabulary(*rest)
            vocabularies[vocabulary.digest] = vocabulary
            while len(vocabularies) > MAX_VOCABULARIES:
                vocabularies.popitem(last=False)
            token_index(vocabulary).engine  # noqa: B018  built now, so that no compilation pays for it
            _answer(answers.write, answers.flush, {"digest": vocabulary.digest})
        else:
            digest, constraint, tokenization, memory_bytes = rest
            found = vocabularies.get(digest)
            answer = {"unknown": digest} if found is None else _compile(found, constraint, tokenization, memory_bytes)
            _answer(answers.write, answers.flush, answer)


def _compile(vocabulary: Vocabulary, constraint: Constraint, tokenization: str, memory_bytes: int) -> dict[str, object]:
    start = time.perf_counter()
    kind = "done"
    try:
        with _memory(memory_bytes):
            compile_constraint(constraint, vocabulary, tokenization=tokenization)
    except (MemoryError, SystemError):
        kind = "memory"  # CPython raises SystemError where it had no memory left for the MemoryError itself
    except ConstrainedSpecError:
        kind = "refused"  # the parent meets the same error, as quickly
    except Exception as error:
        if "memory" in str(error).lower():
            kind = "memory"
        else:
            return {"outcome": "failed", "message": f"{type(error).__name__}: {error}"}
    return {"outcome": kind, "seconds": time.perf_counter() - start}


@contextmanager
def _memory(extra: int) -> Iterator[None]:
    """At most ``extra`` bytes of address space more than now, where the system can limit it."""
    if sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + extra
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Bytes mapped now; a guess that is high enough where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 4 << 30


def _vocabulary(tokens: tuple[bytes | None, ...], eos_ids: tuple[int, ...], special: dict[str, int]) -> Vocabulary:
    """As the parent's but for ``encode``, which is code: single bytes stand in for the tokeniser's own spelling.

    Of what is compiled here only the cost is used.
    """
    single = {t[0]: i for i, t in enumerate(tokens) if t is not None and len(t) == 1}

    def encode(text: str) -> list[int]:
        return [single[byte] for byte in text.encode() if byte in single]

    return Vocabulary(tokens, eos_ids, special, encode)


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    frame = source.read(size)
    return frame if len(frame) == size else None


def _answer(write: Callable[[str], int], flush: Callable[[], None], answer: dict[str, object]) -> None:
    write(json.dumps(answer) + "\n")
    flush()


if __name__ == "__main__":
    main()
