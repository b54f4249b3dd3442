"""constrained-spec bench, with every benchmark registered."""

from __future__ import annotations

from constrained_spec.cli.bench import bench
from constrained_spec.cli.bench_drafters import drafters
from constrained_spec.cli.bench_grammars import grammars
from constrained_spec.cli.bench_load import load
from constrained_spec.cli.bench_schemas import bench_schemas

bench.command("drafters")(drafters)
bench.command("grammars")(grammars)
bench.command("load")(load)
bench.command("schemas")(bench_schemas)

__all__ = ["bench"]
