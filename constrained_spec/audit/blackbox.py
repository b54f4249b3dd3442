"""The part of the audit that needs nothing but HTTP: any OpenAI-compatible server, ours or another.

Two arms answer the same requests: the server as it is, and either a second server or the same one with speculation
switched off by this package's ``extra`` object. A server that takes a nonsensical value there ignores the object, and
then the second arm would be the first one: that is missing evidence, not agreement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
from scipy.stats import chi2_contingency

from constrained_spec.audit.thresholds import FAMILY_ALPHA
from constrained_spec.errors import ConfigError, RequestError

PROMPTS = (
    "Count from one to twelve in words.",
    "Name three colours, separated by commas.",
    "Write one short sentence about the sea.",
    "What is the capital of Norway?",
)
ANSWER = {"enum": ["red", "green", "blue"]}
_OFF = {"extra": {"speculation": "off"}}
_NONSENSE = {"extra": {"speculation": "no such mode"}}
_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer: a client at ``/v1``, a model, and what every request carries beside the question."""

    name: str
    client: httpx2.Client
    model: str
    extra: dict[str, Any]

    def chat(self, prompt: str, **body: Any) -> dict[str, Any]:
        """One chat completion. Raises ``RequestError`` with the server's own words."""
        answer = self.client.post(
            "chat/completions",
            json={"model": self.model, "messages": [{"role": "user", "content": prompt}], **self.extra, **body},
        )
        if answer.status_code != 200:
            raise RequestError(f"{self.name} answered {answer.status_code}: {answer.text[:300]}", param="base-url")
        parsed: dict[str, Any] = answer.json()
        return parsed


def connect(base_url: str, *, key: str | None = None, transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    """A client whose paths are relative to ``base_url`` (which ends in ``/v1``)."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=base_url.rstrip("/") + "/", headers=headers, timeout=_TIMEOUT, transport=transport)


def black_box(
    first: httpx2.Client, second: httpx2.Client | None, *, model: str | None = None, samples: int = 200,
    workers: int = 4, progress: Callable[[str, int, int], None] = lambda section, done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every check; ``passed`` if none failed and none is missing. Raises ``ConfigError`` if nobody answers."""
    arm = Arm("the server", first, model or _only_model(first), {})
    other = _second_arm(arm, second, model)
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "stop contract": lambda: stop_contract(arm),
        "usage contract": lambda: usage_contract(arm),
        "stream contract": lambda: stream_contract(arm),
        "greedy identity": lambda: greedy_identity(arm, other),
        "sampled regression": lambda: sampled_regression(arm, other, samples, workers),
    }
    found = {}
    for number, (name, check) in enumerate(checks.items()):
        progress(f"black box: {name}", number, len(checks))
        try:
            found[name] = check()
        except (RequestError, httpx2.HTTPError, KeyError, ValueError) as error:
            found[name] = {"ok": False, "found": f"{type(error).__name__}: {error}"}
    progress("black box", len(checks), len(checks))
    return {
        "base_url": str(first.base_url), "model": arm.model, "against": None if other is None else other.name,
        "checks": found, "passed": all(check["ok"] is True for check in found.values()),
    }  # fmt: skip


def _only_model(client: httpx2.Client) -> str:
    try:
        answer = client.get("models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx2.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(
            f"{client.base_url} does not list its models: {error}", param="base-url", hint="a URL that ends in /v1"
        ) from error


def _second_arm(arm: Arm, second: httpx2.Client | None, model: str | None) -> Arm | None:
    if second is not None:
        return Arm("the second server", second, model or _only_model(second), {})
    try:
        Arm(arm.name, arm.client, arm.model, _NONSENSE).chat(PROMPTS[0], max_tokens=1)
    except RequestError:  # it reads the object, as it should
        return Arm("the server with speculation off", arm.client, arm.model, _OFF)
    return None


def _content(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"] or ""


def stop_contract(arm: Arm) -> dict[str, Any]:
    """No answer holds its stop string; what stops is called "stop"; the text is the unstopped one, cut."""
    wrong: list[str] = []
    stopped = 0
    for prompt in PROMPTS:
        whole = arm.chat(prompt, temperature=0, max_tokens=48)
        text = _content(whole)
        if len(text) < 8:
            continue
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        cut = arm.chat(prompt, temperature=0, max_tokens=48, stop=[stop])
        stopped += 1
        if _content(cut) != text[: text.index(stop)]:
            wrong.append(f"{prompt!r}: stop {stop!r} left {_content(cut)[-20:]!r}")
        if cut["choices"][0]["finish_reason"] != "stop":
            wrong.append(f"{prompt!r}: finish_reason {cut['choices'][0]['finish_reason']!r} at a stop string")
    return {"ok": not wrong and stopped > 0, "found": f"{stopped} stops, {len(wrong)} wrong", "wrong": wrong[:5]}


def usage_contract(arm: Arm) -> dict[str, Any]:
    """Counts add up, keep to the limit, and a cut answer is called "length"."""
    wrong: list[str] = []
    for prompt, limit in zip(PROMPTS, (1, 2, 5, 64), strict=True):
        answer = arm.chat(prompt, temperature=0, max_tokens=limit)
        usage, reason = answer["usage"], answer["choices"][0]["finish_reason"]
        completion = usage["completion_tokens"]
        if usage["prompt_tokens"] + completion != usage["total_tokens"]:
            wrong.append(f"{usage} does not add up")
        if not 1 <= completion <= limit:
            wrong.append(f"{completion} completion tokens of at most {limit}")
        if reason == "length" and completion != limit:
            wrong.append(f"finish_reason 'length' after {completion} of {limit} tokens")
        if reason not in ("stop", "length"):
            wrong.append(f"finish_reason {reason!r}")
    return {"ok": not wrong, "found": f"{len(PROMPTS)} answers, {len(wrong)} wrong", "wrong": wrong[:5]}


def stream_contract(arm: Arm) -> dict[str, Any]:
    """A streamed answer is the unstreamed one, usage included, and ends with [DONE]."""
    prompt = PROMPTS[0]
    whole = arm.chat(prompt, temperature=0, max_tokens=32)
    body = {
        "model": arm.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 32,
        "stream": True, "stream_options": {"include_usage": True}, **arm.extra,
    }  # fmt: skip
    with arm.client.stream("POST", "chat/completions", json=body) as answer:
        events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    wrong = []
    if not events or events[-1] != "[DONE]":
        wrong.append("the stream does not end with [DONE]")
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))
    if text != _content(whole):
        wrong.append(f"streamed {text[:40]!r}, whole {_content(whole)[:40]!r}")
    usage = next((c["usage"] for c in chunks if c.get("usage")), None)
    if usage is None or usage["completion_tokens"] != whole["usage"]["completion_tokens"]:
        wrong.append(f"streamed usage {usage}, whole {whole['usage']}")
    return {"ok": not wrong, "found": f"{len(chunks)} chunks", "wrong": wrong}


def greedy_identity(arm: Arm, other: Arm | None) -> dict[str, Any]:
    """Both arms give the same text at temperature 0, free and constrained."""
    if other is None:
        return _no_second_arm()
    bodies: Sequence[dict[str, Any]] = ({"max_tokens": 48}, {"max_tokens": 32, "response_format": _format()})
    pairs = [(prompt, body) for prompt in PROMPTS for body in bodies]
    different = [
        f"{prompt!r}{' as JSON' if 'response_format' in body else ''}"
        for prompt, body in pairs
        if _content(arm.chat(prompt, temperature=0, **body)) != _content(other.chat(prompt, temperature=0, **body))
    ]
    return {
        "ok": not different, "found": f"{len(different)} of {len(pairs)} texts differ from {other.name}",
        "wrong": different[:5],
    }  # fmt: skip


def sampled_regression(arm: Arm, other: Arm | None, samples: int, workers: int) -> dict[str, Any]:
    """Both arms draw from one law: a G-test of homogeneity over a constrained answer, seeds of their own."""
    if other is None:
        return _no_second_arm()

    def draw(which: Arm, start: int) -> Counter[str]:
        def one(seed: int) -> str:
            body = {"temperature": 1.0, "max_tokens": 16, "seed": seed, "response_format": _format()}
            return _content(which.chat("Name a colour.", **body))

        with ThreadPoolExecutor(workers) as pool:
            return Counter(pool.map(one, range(start, start + samples)))

    mine, theirs = draw(arm, 0), draw(other, samples)
    p = homogeneity(mine, theirs)
    return {
        "ok": p >= FAMILY_ALPHA, "found": f"p {p:.3g} over {samples} answers of each", "p": p,
        "counts": {text: [mine[text], theirs[text]] for text in sorted(mine | theirs)},
    }  # fmt: skip


def homogeneity(a: Counter[str], b: Counter[str]) -> float:
    """p-value of "both counts come from one law"; texts seen fewer than ten times in all are one cell."""
    texts = sorted(a | b)
    rows = [(a[t], b[t]) for t in texts if a[t] + b[t] >= 10]
    rest = [(a[t], b[t]) for t in texts if a[t] + b[t] < 10]
    if rest:
        rows.append((sum(x for x, _ in rest), sum(y for _, y in rest)))
    if len(rows) < 2:
        return 1.0
    table = [list(column) for column in zip(*rows, strict=True)]
    return float(chi2_contingency(table, lambda_="log-likelihood").pvalue)


def _format() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"colour": ANSWER}, "required": ["colour"], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _no_second_arm() -> dict[str, Any]:
    return {"ok": None, "found": "missing evidence: the server does not read 'extra'; give --second-url"}
