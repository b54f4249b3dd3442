"""The wheel holds the whole package and nothing beside it, and survives a caller with folders of the same names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = ("grammars", "processors")  # at the top of the tree, inside constrained_spec when installed


def source_files() -> set[str]:
    """Every file of the package in the tree, under the name it has once installed."""
    homes = {"constrained_spec": ROOT / "constrained_spec"}
    homes |= {f"constrained_spec/{name}": ROOT / name for name in MAPPED}
    return {
        f"{prefix}/{relative.as_posix()}"
        for prefix, home in homes.items()
        for relative in (path.relative_to(home) for path in home.rglob("*") if path.is_file())
        if "__pycache__" not in relative.parts and not (prefix == "constrained_spec" and relative.parts[0] in MAPPED)
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive, and the wheel that is built from it, as a release is made."""
    # A copy, because setuptools leaves build/ and *.egg-info behind and would take old files from there.
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("constrained_spec", *MAPPED):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [path] = dist.glob("*.whl")
    return path


def test_the_wheel_is_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == source_files()


def test_every_sub_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {file.rsplit("/", 1)[0].replace("/", ".") for file in source_files() if file.endswith("/__init__.py")}
    assert set(listed) == found


def test_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [top] = [name for name in archive.namelist() if name.endswith("top_level.txt")]
        assert archive.read(top).decode().split() == ["constrained_spec"]


def test_the_license_travels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("/LICENSE") for name in archive.namelist())


def test_the_source_archive_holds_each_file_once(dist: Path) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert sum(name.endswith("/grammars/base.py") for name in names) == 1


def test_import_from_a_folder_with_the_same_names(wheel: Path, tmp_path: Path) -> None:
    for name in MAPPED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, cwd=tmp_path, env={})
    # Dependencies come from the environment of the tests, the package itself from the fresh one. Appending the path
    # does not process its .pth files, so an editable install there stays out of sight.
    code = (
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r});"
        "import constrained_spec, constrained_spec.grammars.compile as grammars, constrained_spec.cli.suite as suite;"
        "import constrained_spec.processors.pipeline as processors; from constrained_spec.verify import coupling;"
        "assert suite.extraction_suite();"
        "print(constrained_spec.__file__, grammars.__file__, processors.__file__)"
    )
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(environment)) for path in done.stdout.split()), done.stdout
    script = environment / "bin" / "constrained-spec"
    assert script.is_file()
