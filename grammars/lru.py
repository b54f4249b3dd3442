"""A thread-safe cache bounded by the approximate bytes of what it holds; one build per key, however many ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Gate:
    """Held by the thread that builds a key; the others wait at it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class ByteLru(Generic[K, V]):
    """Least recently used entries go first once the sizes exceed ``capacity`` bytes. The newest entry always stays."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._gates: dict[K, _Gate] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """The value of ``key``; ``make`` returns it with its size in bytes and is called once. Its errors pass through
        and leave nothing behind."""
        with self._lock:
            hit = self._items.get(key)
            if hit is not None:
                self._items.move_to_end(key)
                return hit[0]
            gate = self._gates.setdefault(key, _Gate())
            gate.users += 1
        try:
            with gate.lock:
                with self._lock:
                    hit = self._items.get(key)
                if hit is not None:
                    return hit[0]
                value, size = make()
                with self._lock:
                    self._store(key, value, size)
                return value
        finally:
            with self._lock:
                gate.users -= 1
                if not gate.users:
                    del self._gates[key]

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._bytes = 0

    def _store(self, key: K, value: V, size: int) -> None:
        self._items[key] = (value, size)
        self._bytes += size
        while self._bytes > self.capacity and len(self._items) > 1:
            _, (_, freed) = self._items.popitem(last=False)
            self._bytes -= freed
