"""report.html: the manifest for people, as one file that needs nothing from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from constrained_spec.audit.plots import FIGURES

_MEANING = {
    "release": "All three ledgers close, for the envelope shown.",
    "experiment": "Correct, and not faster: no reason to turn it on.",
    "approximate": "The output does not follow the target's law, or that is not shown.",
    "blocked": "State does not survive a rejection, or that is not shown.",
}


def write_report(manifest: Mapping[str, Any]) -> str:
    """The whole page."""
    template = (files("constrained_spec.audit") / "report.html").read_text(encoding="utf-8")
    target, speculation = manifest["target"], manifest["speculation"]
    title = f"{target['name']}, {speculation['drafter']} drafts, {speculation['verifier']} verifier"
    return Template(template).substitute(
        title=escape(title),
        verdict=escape(manifest["verdict"]),
        meaning=escape(_MEANING[manifest["verdict"]]),
        reasons="".join(f"<li>{escape(reason)}</li>" for reason in manifest["reasons"]),
        planted=_planted(manifest["plant"]),
        gates="".join(_gates(manifest)),
        figures="".join(_figures(manifest)),
        speeds="".join(_speeds(manifest)),
        memory=_memory(manifest),
        facts="".join(_facts(manifest)),
        digest=escape(manifest["digest"]),
        raw=escape(json.dumps({k: v for k, v in manifest.items() if k != "ledgers"}, indent=1, ensure_ascii=False)),
    )


def _planted(plant: str | None) -> str:
    if plant is None:
        return ""
    return f'<p class="planted">The audited system carries a planted fault: {escape(plant)}.</p>'


def _gates(manifest: Mapping[str, Any]) -> Iterator[str]:
    for gate in manifest["gates"]:
        found = gate["found"] if gate["missing"] is None else f"missing evidence: {gate['missing']}"
        cells = (gate["ledger"], gate["name"], gate["threshold"], found, gate["evidence"])
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><td class="{gate["state"]}">{gate["state"]}</td>{row}</tr>'


def _speeds(manifest: Mapping[str, Any]) -> Iterator[str]:
    """One row per suite: where a round's time goes, and what the cost model makes of it."""
    for name, s in (manifest["ledgers"]["performance"].get("performance") or {}).get("suites", {}).items():
        cells = (
            name, f"{s['prefill_share']:.0%}", f"{s['step_ms']:.2f}", f"{s['draft_ms']:.3f}", f"{s['verify_ms']:.2f}",
            f"{s['overhead_ms']:.2f}", f"{s['gamma']:.2f}", f"{s['committed_per_round']:.2f}",
            f"{s['model_speedup']:.2f}×", f"{s['measured_speedup']:.2f}×", f"{s['end_to_end_speedup']:.2f}×",
        )  # fmt: skip
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _memory(manifest: Mapping[str, Any]) -> str:
    held = (manifest["ledgers"]["performance"].get("performance") or {}).get("memory")
    if held is None:
        return ""
    told = ", ".join(f"{name} {held[name] / 2**20:,.0f} MiB" for name in ("weights", "kv", "free"))
    return f"<p>Memory: {told}.</p>"


def _figures(manifest: Mapping[str, Any]) -> Iterator[str]:
    for caption, draw in FIGURES:
        svg = draw(manifest)
        body = svg if svg is not None else "<p>no evidence</p>"
        told = escape(caption)
        yield f'<figure role="img" aria-label="{told}">{body}<figcaption>{told}</figcaption></figure>'


def _facts(manifest: Mapping[str, Any]) -> Iterator[str]:
    for part in ("target", "speculation", "distribution", "environment", "effort"):
        rows = "".join(
            f"<tr><th>{escape(str(key))}</th><td>{escape(_told(value))}</td></tr>"
            for key, value in manifest[part].items()
        )
        yield f"<section><h3>{part}</h3><table>{rows}</table></section>"


def _told(value: object) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
