"""/metrics against what the engine counted, under our names and under vLLM's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from constrained_spec.api import Engine

ASK = {"messages": [{"role": "user", "content": "hello hello hello"}], "max_tokens": 24, "temperature": 0}


def _values(api: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, other labels) -> value."""
    answer = api.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "model_name"))
            found[sample.name, labels] = sample.value
    return found


def test_counters_are_the_engines_own(api: Any, server_engine: Engine) -> None:
    assert api.post("/v1/chat/completions", ASK).status_code == 200
    seen, s = _values(api), server_engine.snapshot()
    for name, value in (
        ("constrained_spec_prompt_tokens_total", s.prompt_tokens),
        ("vllm:prompt_tokens_total", s.prompt_tokens),
        ("constrained_spec_completion_tokens_total", s.completion_tokens),
        ("vllm:generation_tokens_total", s.completion_tokens),
        ("constrained_spec_rounds_total", s.steps),
        ("constrained_spec_drafts_total", s.drafts),
        ("vllm:spec_decode_num_drafts_total", s.drafts),
        ("vllm:spec_decode_num_draft_tokens_total", s.proposed),
        ("vllm:spec_decode_num_accepted_tokens_total", s.accepted),
        ("constrained_spec_rollback_tokens_total", s.rolled_back),
        ("vllm:num_requests_running", 0),
        ("vllm:num_requests_waiting", 0),
        ("constrained_spec_slots", 4),
        ("constrained_spec_ready", 1),
    ):
        assert seen[name, ()] == value, name


def test_committed_tokens_by_origin_add_up(api: Any, server_engine: Engine) -> None:
    api.post("/v1/chat/completions", ASK)
    seen, s = _values(api), server_engine.snapshot()
    origins = {dict(k[1])["origin"]: v for k, v in seen.items() if k[0] == "constrained_spec_committed_tokens_total"}
    assert set(origins) == {"accepted", "forced", "recovered", "bonus"}
    assert sum(origins.values()) == s.completion_tokens
    ours = {k[1]: v for k, v in seen.items() if k[0] == "constrained_spec_accepted_tokens_per_pos_total"}
    theirs = {k[1]: v for k, v in seen.items() if k[0] == "vllm:spec_decode_num_accepted_tokens_per_pos_total"}
    assert ours == theirs
    assert sum(ours.values()) == s.accepted


def test_a_request_is_in_every_histogram(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.post("/v1/chat/completions", ASK)
    api.events("/v1/chat/completions", ASK)
    seen = _values(api)
    for name in (
        "time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_time_per_output_token_seconds",
    ):  # fmt: skip
        for prefix in ("constrained_spec_", "vllm:"):
            assert seen[f"{prefix}{name}_count", ()] == 2, name
    # All tokens but those of each request's first piece have one before them.
    assert seen["vllm:inter_token_latency_seconds_count", ()] > 0


def test_requests_by_end_and_by_status(make_api: Callable[..., Any]) -> None:
    api = make_api()
    before = _values(api)
    api.post("/v1/chat/completions", {**ASK, "max_tokens": 1})
    api.post("/v1/chat/completions", {**ASK, "temperature": -1})
    api.get("/absent/with/a/name")
    seen = _values(api)
    key = ("vllm:request_success_total", (("finished_reason", "length"),))
    assert seen[key] == before.get(key, 0) + 1
    path = ("path", "/v1/chat/completions")
    assert seen["constrained_spec_http_requests_total", (path, ("status", "200"))] == 1
    assert seen["constrained_spec_http_requests_total", (path, ("status", "400"))] == 1
    assert seen["constrained_spec_http_requests_total", (("path", "unknown"), ("status", "404"))] == 1
    assert not any("absent" in str(key) for key in seen)


def test_compiled_constraints_are_counted(make_api: Callable[..., Any]) -> None:
    api = make_api()
    schema = {"type": "object", "properties": {"metrics": {"type": "null"}}, "required": ["metrics"]}
    form = {"type": "json_schema", "json_schema": {"name": "m", "schema": schema}}
    for _ in range(3):
        assert api.post("/v1/chat/completions", {**ASK, "response_format": form}).status_code == 200
    seen = _values(api)
    assert seen["constrained_spec_grammar_compile_seconds_count", ()] == 1
    assert seen["constrained_spec_grammar_cache_hits_total", ()] == 2


def test_an_outside_bench_finds_its_lines(api: Any) -> None:
    """Rules of vLLM's bench: lines that begin with vllm:spec_decode, whose name without labels ends in _total."""
    api.post("/v1/chat/completions", ASK)
    figures: dict[str, float] = {}
    for line in api.get("/metrics").text.splitlines():
        if line.startswith("vllm:spec_decode"):
            name, value = line.split()[0].split("{")[0], float(line.split()[-1])
            if name.endswith("_total"):
                figures[name] = figures.get(name, 0) + value
    assert {"vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total"} <= set(figures)


def test_the_board_shows_only_what_there_is(api: Any) -> None:
    """Every metric that the example board names is served."""
    board = (Path(__file__).parents[2] / "examples" / "grafana.json").read_text(encoding="utf-8")
    named = set(re.findall(r"constrained_spec_[a-z0-9_]+", board))
    api.post("/v1/chat/completions", {**ASK, "structured_outputs": {"choice": ["a", "b"]}})
    text = api.get("/metrics").text
    families = {name for line in text.splitlines() if line.startswith("# TYPE") for name in [line.split()[2]]}
    served = families | {f"{name}_bucket" for name in families}
    assert len(named) > 25
    assert named <= served


def test_before_the_engine_there_are_no_counters_of_it(loading_api: Any) -> None:
    seen = _values(loading_api)
    assert seen["constrained_spec_ready", ()] == 0
    assert ("vllm:num_requests_running", ()) not in seen
