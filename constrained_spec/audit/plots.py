"""The figures of the report, each one SVG that stands inside the page. Colours read on light and dark ground."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from constrained_spec.audit.thresholds import EXACT, FAMILY_ALPHA

INK, BLUE, ORANGE, GREEN, RED = "#808895", "#3b7dd8", "#d9822b", "#2f9e62", "#d64545"
Manifest = Mapping[str, Any]
_STYLE: Any = {
    "svg.fonttype": "path", "svg.hashsalt": "constrained_spec", "font.size": 9.0, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


@contextmanager
def _axes(width: float = 5.2, height: float = 2.9) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on; the list then holds the SVG."""
    out: list[str] = []
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        yield axes, out
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    out.append(text[text.index("<svg") :])


def acceptance(m: Manifest) -> str | None:
    """Share of judged drafts that stood, by place in the block."""
    suites = _performance(m).get("suites", {})
    rows = {name: s["acceptance_by_position"] for name, s in suites.items() if s["acceptance_by_position"]}
    if not rows:
        return None
    with _axes() as (ax, out):
        for name, places in rows.items():
            known = [(i + 1, kept / judged) for i, (judged, kept) in enumerate(places) if judged]
            ax.plot(*zip(*known, strict=True), marker="o", ms=3, label=name)
        _labels(ax, "place in the block", "accepted", legend=True)
        ax.set_ylim(0, 1.05)
    return out[0]


def committed(m: Manifest) -> str | None:
    """Committed tokens per round, of each request."""
    suites = _performance(m).get("suites", {})
    rows = {name: sorted(s["committed_per_request"].values()) for name, s in suites.items()}
    if not rows:
        return None
    with _axes() as (ax, out):
        ax.boxplot(list(rows.values()), tick_labels=list(rows), widths=0.5, medianprops={"color": ORANGE},
                   boxprops={"color": INK}, whiskerprops={"color": INK}, capprops={"color": INK})  # fmt: skip
        ax.axhline(1, color=RED, lw=0.8, ls="--")
        _labels(ax, "", "committed tokens a round")
    return out[0]


def block_costs(m: Manifest) -> str | None:
    """A forward of several places in units of a single step."""
    costs = _performance(m).get("costs")
    if not costs:
        return None
    with _axes() as (ax, out):
        sizes = [int(k) for k in costs["block_ms"]]
        ax.plot(sizes, [ms / costs["step_ms"] for ms in costs["block_ms"].values()], marker="o", ms=3, color=BLUE)
        ax.axhline(1, color=INK, lw=0.8, ls="--")
        _labels(ax, "places in one forward (γ + 1)", "V(γ) / B")
        ax.set_ylim(bottom=0)
    return out[0]


def speed_by_gamma(m: Manifest) -> str | None:
    """Speed-up against the drafts per round, measured and by the model."""
    rows = _performance(m).get("gamma_sweep")
    if not rows:
        return None
    with _axes() as (ax, out):
        gammas = [r["gamma"] for r in rows]
        ax.plot(gammas, [r["measured"] for r in rows], marker="o", ms=4, color=BLUE, label="measured")
        ax.plot(gammas, [r["modelled"] for r in rows], marker="s", ms=3, color=ORANGE, ls="--", label="model")
        ax.axhline(1, color=RED, lw=0.8, ls="--")
        _labels(ax, "γ", "speed-up", legend=True)
        ax.set_ylim(bottom=0)
    return out[0]


def speed_by_load(m: Manifest) -> str | None:
    """Speed-up against requests at once."""
    cells = m["envelope"]
    if not cells:
        return None
    with _axes() as (ax, out):
        for suite in dict.fromkeys(c["suite"] for c in cells):
            own = [c for c in cells if c["suite"] == suite]
            ax.plot([c["concurrency"] for c in own], [c["speedup"] for c in own], marker="o", ms=4, label=suite)
        ax.axhline(1, color=RED, lw=0.8, ls="--")
        _labels(ax, "requests at once", "speed-up in throughput", legend=True)
        ax.set_ylim(bottom=0)
    return out[0]


def latencies(m: Manifest) -> str | None:
    """Distribution of the seconds per request, one at a time."""
    cells = [c for c in _performance(m).get("cells", []) if c["concurrency"] == 1]
    if not cells:
        return None
    with _axes() as (ax, out):
        for kind, colour in (("target_only", INK), ("speculative", BLUE)):
            seconds = sorted(x for c in cells for x in c["latency_s"][kind]["all"])
            shares = [(i + 1) / len(seconds) for i in range(len(seconds))]
            ax.step(seconds, shares, where="post", color=colour, label=kind.replace("_", "-"))
        _labels(ax, "seconds a request", "share of requests", legend=True)
    return out[0]


def envelope(m: Manifest) -> str | None:
    """Speed-up by workload and load; released cells are framed."""
    cells = m["envelope"]
    if not cells:
        return None
    suites = list(dict.fromkeys(c["suite"] for c in cells))
    levels = sorted({c["concurrency"] for c in cells})
    table = [[float("nan")] * len(levels) for _ in suites]
    with _axes(height=0.9 + 0.5 * len(suites)) as (ax, out):
        for c in cells:
            table[suites.index(c["suite"])][levels.index(c["concurrency"])] = c["speedup"]
        mesh = ax.pcolormesh(table, cmap="RdYlGn", vmin=0.5, vmax=1.5)
        for c in cells:
            x, y = levels.index(c["concurrency"]) + 0.5, suites.index(c["suite"]) + 0.5
            red, green, blue, _ = mesh.to_rgba(c["speedup"])
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
            ax.text(x, y, f"{c['speedup']:.2f}× {c['decision']}", ha="center", va="center", color=ink)
        ax.set_xticks([i + 0.5 for i in range(len(levels))], [str(level) for level in levels])
        ax.set_yticks([i + 0.5 for i in range(len(suites))], suites)
        ax.invert_yaxis()
        _labels(ax, "requests at once", "")
    return out[0]


def law_error(m: Manifest) -> str | None:
    """Largest error of the law by case: of the rule, of the running code, and of a wrong rule beside them."""
    worlds = m["ledgers"]["probability"].get("small_worlds", {})
    rows = worlds.get("cases")
    if not rows:
        return None
    with _axes(height=3.6) as (ax, out):
        names = [f"{r['case']} ({r['draft']})" for r in rows]
        for key, colour, mark in (("wrong_rule", RED, "x"), ("rule", BLUE, "o"), ("code", GREEN, "s")):
            at = [i for i, r in enumerate(rows) if r.get(key) is not None]
            if at:
                ax.plot([max(rows[i][key], 1e-17) for i in at], at, mark, color=colour, ms=4,
                        label=key.replace("_", " "))  # fmt: skip
        ax.axvline(EXACT, color=INK, lw=0.8, ls="--")
        ax.set_xscale("log")
        ax.set_yticks(range(len(names)), names)
        _labels(ax, "largest error of a probability", "", legend=True)
    return out[0]


def regression(m: Manifest) -> str | None:
    """Frequencies against probabilities in every sampled case."""
    cases = m["ledgers"]["probability"].get("regression", {}).get("cases")
    if not cases:
        return None
    with _axes(height=3.2) as (ax, out):
        for case in cases:
            n = case["samples"]
            points = [(f["law"], f["seen"] / n) for f in case["frequencies"] if f["law"] > 0]
            label = f"{case['space']}, {case['drafter']}: p {case['p_adjusted']:.2g}"
            ax.plot(*zip(*points, strict=True), "o", ms=3, alpha=0.8, label=label)
        most = max(f["law"] for case in cases for f in case["frequencies"])
        ax.plot([0, most], [0, most], color=INK, lw=0.8, ls="--")
        _labels(ax, f"exact probability (the family fails below p = {FAMILY_ALPHA})", "frequency", legend=True)
    return out[0]


FIGURES: Sequence[tuple[str, Callable[[Manifest], str | None]]] = (
    ("Error of the law on small worlds", law_error),
    ("Sampled regression: frequencies against exact probabilities", regression),
    ("Acceptance by position", acceptance),
    ("Committed tokens per round", committed),
    ("Cost of a block, V(γ)/B", block_costs),
    ("Speed-up against γ", speed_by_gamma),
    ("Speed-up against concurrency", speed_by_load),
    ("Latency", latencies),
    ("Operating envelope", envelope),
)


def _performance(m: Manifest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = m["ledgers"]["performance"].get("performance") or {}
    return found


def _labels(ax: Axes, x: str, y: str, *, legend: bool = False) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if legend:  # above the axes, where it hides no point
        ax.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
