"""Prometheus metrics: the engine's counters as they stand when asked, histograms of what requests went through.

Every figure has a name of its own (``constrained_spec_…``). Those that vLLM also has are given under its name too,
since its bench and public boards read them. The registry belongs to one app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from constrained_spec import __version__
from constrained_spec.api import Result, Snapshot

OWN, VLLM = "constrained_spec_", "vllm:"
NO_DRAFT = ("forced", "recovered", "bonus")
# Theirs has one word for every end that was not the model's.
_THEIR_REASON = {"cancelled": "abort", "deadline": "abort"}
_LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)


class Metrics:
    """One registry. ``snapshot`` gives the engine's counters, None while there is no engine."""

    def __init__(self, model: str, snapshot: Callable[[], Snapshot | None]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engine(model, snapshot))
        self.model = model
        self._http = Counter(
            f"{OWN}http_requests", "Answers by path and status.", ("path", "status"), registry=self.registry
        )
        self._compile = Histogram(
            f"{OWN}grammar_compile_seconds", "Compiling a constraint.", registry=self.registry, buckets=_STEP
        )
        self._hits = Counter(f"{OWN}grammar_cache_hits", "Constraints found compiled.", registry=self.registry)
        self._refused = Counter(f"{OWN}grammar_refused", "Constraints refused.", ("code",), registry=self.registry)
        self._first = self._both("time_to_first_token_seconds", "Arrival to first text.", _LATENCY)
        self._between = self._both("inter_token_latency_seconds", "Between one token and the next.", _STEP)
        self._per_token = self._both("request_time_per_output_token_seconds", "Mean a token, per request.", _STEP)
        self._total = self._both("e2e_request_latency_seconds", "Arrival to end.", _LATENCY)
        self._queue = self._both("request_queue_time_seconds", "Waiting for a slot.", _LATENCY)
        self._prefill = self._both("request_prefill_time_seconds", "Start to first token.", _LATENCY)
        self._decode = self._both("request_decode_time_seconds", "First token to end.", _LATENCY)

    def _both(self, name: str, text: str, buckets: tuple[float, ...]) -> tuple[Histogram, ...]:
        return tuple(
            Histogram(prefix + name, text, ("model_name",), registry=self.registry, buckets=buckets)
            for prefix in (OWN, VLLM)
        )

    def _observe(self, histograms: tuple[Histogram, ...], value: float) -> None:
        for histogram in histograms:
            histogram.labels(self.model).observe(value)

    def answered(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def compiled(self, seconds: float) -> None:
        self._compile.observe(seconds)

    def cache_hit(self) -> None:
        self._hits.inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def first_token(self, seconds: float) -> None:
        self._observe(self._first, seconds)

    def tokens(self, seconds: float, count: int) -> None:
        """``count`` tokens arrived ``seconds`` after those before: a round commits several at once."""
        for _ in range(count):
            self._observe(self._between, seconds / count)

    def finished(self, result: Result[object], seconds: float) -> None:
        """``seconds`` from the request's arrival to its last token, compiling and waiting included."""
        timing = result.timing
        decode = max(0.0, timing.total_s - timing.first_token_s)
        self._observe(self._total, seconds)
        self._observe(self._queue, timing.queue_s)
        self._observe(self._prefill, max(0.0, timing.first_token_s - timing.queue_s))
        self._observe(self._decode, decode)
        later = result.usage.completion_tokens - 1
        if later > 0:
            self._observe(self._per_token, decode / later)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


class _Engine(Collector):
    """Reads one snapshot a scrape."""

    def __init__(self, model: str, snapshot: Callable[[], Snapshot | None]) -> None:
        self._model = model
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(f"{OWN}build", "Version and model.", {"version": __version__, "model": self._model})
        s = self._snapshot()
        yield self._gauge("ready", "1 once requests are served.", float(s is not None))
        if s is not None:
            yield from self._gauges(s)
            yield from self._work(s)
            yield from self._speculation(s)

    def _gauges(self, s: Snapshot) -> Iterator[Metric]:
        usage = s.kv_tokens / s.kv_capacity if s.kv_capacity else 0.0
        yield self._gauge("requests_running", "Requests in a slot.", s.running)
        yield self._gauge("num_requests_running", "Requests in a slot.", s.running, VLLM)
        yield self._gauge("requests_waiting", "Requests without a slot.", s.waiting)
        yield self._gauge("num_requests_waiting", "Requests without a slot.", s.waiting, VLLM)
        yield self._gauge("slots", "Slots.", s.slots)
        yield self._gauge("kv_tokens", "Tokens whose keys and values are held.", s.kv_tokens)
        yield self._gauge("kv_usage_ratio", "Share of the key-value cache in use.", usage)
        yield self._gauge("kv_cache_usage_perc", "Share of the key-value cache in use.", usage, VLLM)
        length = 1 + s.accepted / s.drafts if s.drafts else 1.0
        rate = s.accepted / s.proposed if s.proposed else 0.0
        yield self._gauge("acceptance_length", "1 + accepted / drafts, since the start.", length)
        yield self._gauge("acceptance_rate", "accepted / proposed, since the start.", rate)

    def _work(self, s: Snapshot) -> Iterator[Metric]:
        yield self._counter("prompt_tokens", "Prompt tokens.", s.prompt_tokens)
        yield self._counter("prompt_tokens", "Prompt tokens.", s.prompt_tokens, VLLM)
        yield self._counter("cached_tokens", "Prompt tokens taken from an earlier prompt.", s.cached_tokens)
        yield self._counter("completion_tokens", "Committed tokens.", s.completion_tokens)
        yield self._counter("generation_tokens", "Committed tokens.", s.completion_tokens, VLLM)
        yield self._counter("rounds", "Target forwards.", s.steps)
        yield self._counter("preemptions", "Requests that gave their slot up for a while.", s.preemptions)
        for part in ("mask", "forward", "propose", "verify", "scheduler"):
            yield self._counter(f"{part}_seconds", f"Seconds in: {part}.", getattr(s, f"{part}_seconds"))
        yield self._labelled("requests_finished", "Requests by end.", "reason", s.finished)
        theirs: dict[str, float] = {}
        for reason, count in s.finished.items():
            name = _THEIR_REASON.get(reason, reason)
            theirs[name] = theirs.get(name, 0) + count
        yield self._labelled("request_success", "Requests by end.", "finished_reason", theirs, VLLM)

    def _speculation(self, s: Snapshot) -> Iterator[Metric]:
        for own, theirs, text, value in (
            ("drafts", "num_drafts", "Rounds with a proposal.", s.drafts),
            ("proposed_tokens", "num_draft_tokens", "Drafted tokens.", s.proposed),
            ("accepted_tokens", "num_accepted_tokens", "Drafted tokens that stood.", s.accepted),
        ):
            yield self._counter(own, text, value)
            yield self._counter(f"spec_decode_{theirs}", text, value, VLLM)
        by_position = {str(i): n for i, n in enumerate(s.accepted_by_position)}
        text = "Drafted tokens that stood, by place in the block."
        yield self._labelled("accepted_tokens_per_pos", text, "position", by_position)
        yield self._labelled("spec_decode_num_accepted_tokens_per_pos", text, "position", by_position, VLLM)
        drafted = {k: n for k, n in s.committed.items() if k not in NO_DRAFT}
        forced = drafted.get("forced", 0)
        origins = {"accepted": sum(drafted.values()) - forced, "forced": forced}
        origins |= {k: s.committed.get(k, 0) for k in NO_DRAFT}
        yield self._labelled("committed_tokens", "Committed tokens by how they came about.", "origin", origins)
        yield self._labelled("committed_drafts", "Committed drafts by drafter.", "source", drafted)
        yield self._counter("rollback_tokens", "Drafted tokens rolled back.", s.rolled_back)
        yield self._labelled("fallbacks", "Drafters switched off.", "reason", s.fallbacks)

    def _gauge(self, name: str, text: str, value: float, prefix: str = OWN) -> Metric:
        family = GaugeMetricFamily(prefix + name, text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family

    def _counter(self, name: str, text: str, value: float, prefix: str = OWN) -> Metric:
        family = CounterMetricFamily(prefix + name, text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: Mapping[str, float], prefix: str = OWN) -> Metric:
        family = CounterMetricFamily(prefix + name, text, labels=("model_name", label))
        for value, count in values.items():
            family.add_metric((self._model, value), count)
        return family
