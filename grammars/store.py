"""Vocabulary tries kept on disk: numpy arrays under the vocabulary's digest, in the user's cache folder.

Only what is derived from the vocabulary is kept, so a file may be deleted at any time. A file that cannot be read, is
cut short or speaks of another vocabulary is ignored and written anew; a folder that cannot be written to is reported
once to the log, and everything works without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from constrained_spec.grammars.tries import Level

FORMAT = 1  # of the file; a change of the layout makes new files
MIN_TOKENS = 32_768  # a smaller vocabulary is built as quickly as it is read
MAX_FILES = 8  # the least recently used ones go first
_FIELDS = ("parent", "byte", "child_start", "ids", "ids_start")  # of a level, in this order
_BROKEN = (OSError, ValueError, KeyError, IndexError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)

_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """The user's cache folder, or ``$CONSTRAINED_SPEC_CACHE``."""
    given = os.environ.get("CONSTRAINED_SPEC_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("constrained-spec"))


def cache_folder() -> Path:
    """Where the files lie."""
    return cache_root() / "tries"


def path_of(digest: str) -> Path:
    """The file of the vocabulary with that ``digest``; it need not exist."""
    return cache_folder() / f"{digest}-{FORMAT}.npz"


def levels_of(digest: str, size: int, build: Callable[[], tuple[Level, ...]]) -> tuple[Level, ...]:
    """The trie of the vocabulary ``digest`` with ``size`` ids: read if it is on disk, else built and written."""
    if size < MIN_TOKENS:
        return build()
    path = path_of(digest)
    levels = read(path, digest, size)
    if levels is None:
        levels = build()
        write(path, digest, levels)
    return levels


def read(path: Path, digest: str, size: int) -> tuple[Level, ...] | None:
    """The levels in ``path``; None if it is missing, damaged or another vocabulary's."""
    try:
        with (
            path.open("rb") as raw,
            np.load(raw, allow_pickle=False) as file,
        ):  # zip members carry checksums, which reading verifies
            if bytes(file["digest"]) != digest.encode():
                return None
            levels = _split(file["sizes"], [file[name] for name in _FIELDS])
    except FileNotFoundError:
        return None
    except _BROKEN as error:
        _log.warning("the cached trie %s is ignored and written anew: %s", path, error)
        return None
    if not _is_sound(levels, size):
        return None
    with contextlib.suppress(OSError):  # a read-only cache is still a cache
        os.utime(path)
    return levels


def write(path: Path, digest: str, levels: Sequence[Level]) -> None:
    """Appears by one rename, so that no reader meets half a file. Failure is logged, not raised."""
    arrays = [[getattr(level, name) for level in levels] for name in _FIELDS]
    content: dict[str, NDArray[np.generic]] = {
        "digest": np.frombuffer(digest.encode(), np.uint8),
        "sizes": np.array([[len(a) for a in column] for column in arrays], np.int64).reshape(len(_FIELDS), len(levels)),
    }
    for name, column in zip(_FIELDS, arrays, strict=True):
        whole = np.concatenate(column) if column else np.empty(0, np.int64)
        content[name] = whole.astype(np.uint8 if name == "byte" else np.int32)  # ids and offsets are below 2^31
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as out:
            np.savez(out, allow_pickle=False, **content)
        os.replace(temporary, path)
        temporary = None
        _trim(path.parent)
    except OSError as error:
        _log.warning("the trie of the vocabulary cannot be kept in %s: %s", path.parent, error)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _split(sizes: NDArray[np.int64], columns: Sequence[NDArray[np.generic]]) -> tuple[Level, ...]:
    if sizes.ndim != 2 or len(sizes) != len(_FIELDS):
        raise ValueError("the table of sizes has another shape")
    parts = []
    for lengths, column, name in zip(sizes, columns, _FIELDS, strict=True):
        wanted = np.uint8 if name == "byte" else np.int64
        if lengths.sum() != len(column) or (lengths < 0).any():
            raise ValueError("the sizes do not add up")
        parts.append(np.split(column.astype(wanted), np.cumsum(lengths)[:-1]))
    return tuple(
        Level(parent=parent, byte=byte, child_start=child_start, ids=ids, ids_start=ids_start)
        for parent, byte, child_start, ids, ids_start in zip(*parts, strict=True)
    )


def _is_sound(levels: Sequence[Level], size: int) -> bool:
    """Every offset stays within its array and every id within the vocabulary: a wrong file cannot index outside."""
    above = 1
    for level in levels:
        nodes = len(level.parent)
        for starts, groups, members in ((level.child_start, above, nodes), (level.ids_start, nodes, len(level.ids))):
            if len(starts) != groups + 1 or starts[0] != 0 or starts[-1] != members or (np.diff(starts) < 0).any():
                return False
        if len(level.byte) != nodes or (len(level.ids) and not 0 <= level.ids.min() <= level.ids.max() < size):
            return False
        if nodes and not 0 <= level.parent.min() <= level.parent.max() < above:
            return False
        above = nodes
    return True


def _trim(folder: Path) -> None:
    files = sorted(folder.glob("*.npz"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in files[MAX_FILES:]:
        path.unlink(missing_ok=True)
