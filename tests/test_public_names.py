"""What ``import constrained_spec`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import constrained_spec


def test_the_names_are_sorted_and_all_resolve() -> None:
    assert constrained_spec.__all__ == sorted(constrained_spec.__all__)
    for name in constrained_spec.__all__:
        assert getattr(constrained_spec, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="nothing"):
        constrained_spec.nothing  # noqa: B018


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, constrained_spec.errors;"
        "print([m for m in ('torch', 'transformers', 'llguidance') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
