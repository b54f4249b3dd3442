"""`vllm bench serve` as a client: what it sends, and what it reads from /metrics before and after."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import httpx2

# What public boards of vLLM read beside the counters of speculation.
SERIES = {
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
}
DRAFTS, DRAFTED, ACCEPTED, PLACES = (
    f"vllm:spec_decode_num_{name}_total"
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
LINE = re.compile(r"(?P<name>[a-z0-9_:]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")


def scrape(url: str) -> list[tuple[str, dict[str, str], float]]:
    """Every line that is no comment: name, labels, value."""
    answer = httpx2.get(f"{url}/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    found = []
    for line in answer.text.splitlines():
        if line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"] or ""))
            found.append((match["name"], labels, float(match["value"])))
    return found


def speculation(url: str) -> tuple[Counter[str], Counter[int]]:
    """The counters of speculation, and accepted tokens by position. The bench adds up every line of a counter, and
    reads whole numbers from lines whose names end in ``_total``."""
    sums: Counter[str] = Counter()
    places: Counter[int] = Counter()
    for name, labels, value in scrape(url):
        if name.startswith("vllm:spec_decode"):
            assert name in (DRAFTS, DRAFTED, ACCEPTED, PLACES), "a line more would be added to a sum"
            assert value == int(value) and "model_name" in labels
            sums[name] += int(value)
            if name == PLACES:
                places[int(labels["position"])] += int(value)
    return sums, places


def ask(url: str, path: str, **body: Any) -> None:
    """One request as the bench sends them."""
    common = {"model": "tiny", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    answer = httpx2.post(f"{url}{path}", json={**common, **body}, timeout=600)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n"), answer.text


def test_the_difference_of_two_scrapes_is_what_was_drafted(url: str) -> None:
    constraint = {"structured_outputs": {"regex": "(abc){9}"}}
    ask(url, "/v1/completions", prompt="abc", max_tokens=40, repetition_penalty=1.0, logprobs=0, **constraint)
    before = speculation(url)
    ask(url, "/v1/completions", prompt="abc", max_tokens=40, repetition_penalty=1.0, logprobs=0, **constraint)
    ask(
        url, "/v1/chat/completions", messages=[{"role": "user", "content": "abcabcabc"}], max_completion_tokens=12,
        ignore_eos=True, min_tokens=12,
    )  # fmt: skip
    after = speculation(url)
    made = {name: after[0][name] - before[0][name] for name in (DRAFTS, DRAFTED, ACCEPTED)}
    assert made[DRAFTS] > 0 and made[DRAFTED] >= made[ACCEPTED] > 0
    places = [after[1][place] - before[1][place] for place in range(len(after[1]))]
    assert sum(places) == made[ACCEPTED] and places == sorted(places, reverse=True)


def test_the_series_of_public_boards_are_there(url: str) -> None:
    ask(url, "/v1/completions", prompt="abc", max_tokens=4, ignore_eos=True)
    names = {name for name, _, _ in scrape(url)}
    assert not SERIES - names


def test_the_tokens_of_a_request_are_counted(url: str) -> None:
    def total(name: str) -> float:
        return sum(value for found, _, value in scrape(url) if found == name)

    prompt, written = total("vllm:prompt_tokens_total"), total("vllm:generation_tokens_total")
    ask(url, "/v1/completions", prompt="twelve bytes", max_tokens=7, ignore_eos=True)
    assert total("vllm:prompt_tokens_total") - prompt == 12
    assert total("vllm:generation_tokens_total") - written == 7
