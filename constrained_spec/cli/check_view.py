"""The report of ``check`` for people. rich leaves colours out on what is no terminal, and where NO_COLOR is set."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_WINDOW = 60  # characters shown on each side of the place where a text leaves the language
_MAX_RANGES = 24


def show(report: dict[str, Any], text: str | None) -> None:
    """Print ``report``, the object of ``check --json``; ``text`` is what was looked for."""
    console = Console(highlight=False, soft_wrap=True)

    def line(name: str, value: object, style: str = "") -> None:
        console.print(Text(f"{name:12} ", "bold").append(str(value), style or "not bold"))

    if report["kind"] is not None:
        line("constraint", report["kind"])
    error = report["error"]
    if error is not None:
        place = f" (at {error['param']})" if error["param"] else ""
        hint = f"; {error['hint']}" if error["hint"] else ""
        line("refused", f"{error['type']}: {error['message']}{place}{hint}", "red")
        for name in ("limit", "position"):
            if name in error:
                line(name, error[name])
        for refusal in report["refused"]:
            line("keyword", f"{refusal['pointer'] or '/'}: {refusal['message']}", "red")
        if report["language"] is not None:
            line("language", "empty", "red")
        if report["compile_ms"] is not None:
            line("time", f"{report['compile_ms']:.1f} ms")
        return
    states = "" if report["states"] is None else f", {report['states']} states"
    size = "" if report["bytes"] is None else f", {report['bytes']} bytes"
    line("engine", report["engine"] + states + size)
    line("compile", f"{report['compile_ms']:.1f} ms")
    for warning in report["warnings"]:
        line("warning", warning, "yellow")
    for item in report["relaxed"]:
        line("relaxed", f"{item['pointer'] or '/'} is not enforced, only checked on the finished value", "yellow")
    line("language", _language(report["language"]))
    example = report["example"]
    line("example", "none found by a short walk" if example is None else visible(example) or "the empty text")
    if text is not None:
        _show_place(console, report["text"], text)


def _language(language: dict[str, Any]) -> str:
    if language["count"] is not None:
        return f"finite, {language['count']} text{'s' if language['count'] != 1 else ''}"
    return "size unknown" if language["size"] == "unknown" else str(language["size"])


def _show_place(console: Console, place: dict[str, Any], text: str) -> None:
    if place["complete"]:
        console.print(Text("text         ", "bold").append("in the language", "green"))
        return
    where = f"byte {place['byte']}, character {place['char']}"
    says = f"cut short at {where}" if place["cut_short"] else f"leaves the language at {where}"
    console.print(Text("text         ", "bold").append(says, "red"))
    before, bad, after = around(text, place["char"])
    console.print(Text("  ").append(before, "green").append(bad, "red").append(after, "dim"))
    console.print(Text("  " + " " * cell_len(before)).append("^", "bold red"))
    allowed = ["the end"] if place["may_stop"] else []
    allowed += ranges(place["allowed_bytes"])
    console.print(Text("allowed      ", "bold").append(", ".join(allowed) or "nothing", "cyan"))
    if place["allowed_tokens"]:
        tokens = " ".join(repr(token) for token in place["allowed_tokens"])
        console.print(Text("tokens       ", "bold").append(tokens, "cyan"))


def around(text: str, at: int) -> tuple[str, str, str]:
    """The line of character ``at``, cut to a window: (before it, the character, after it), control characters shown."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else max(end, at + 1)  # the line break itself may be what is not allowed
    left, right = max(start, at - _WINDOW), min(end, at + 1 + _WINDOW)
    before = ("…" if left > start else "") + visible(text[left:at])
    after = visible(text[at + 1 : right]) + ("…" if right < end else "")
    return before, visible(text[at : at + 1]), after


def visible(text: str) -> str:
    """Control characters as their Unicode pictures: one column each, and none reaches the terminal."""
    return "".join(chr(0x2400 + ord(c)) if ord(c) < 0x20 else "␡" if 0x7F <= ord(c) < 0xA0 else c for c in text)


def ranges(values: list[int]) -> list[str]:
    """Bytes as readable ranges: printable ASCII as characters, the rest in hexadecimal."""
    groups: list[list[int]] = []
    for value in values:
        printable = 0x20 <= value < 0x7F
        if groups and groups[-1][1] == value - 1 and (0x20 <= groups[-1][1] < 0x7F) == printable:
            groups[-1][1] = value
        else:
            groups.append([value, value])
    shown = [_byte(a) if a == b else f"{_byte(a)}-{_byte(b)}" for a, b in groups[:_MAX_RANGES]]
    return shown + ([f"and {len(groups) - _MAX_RANGES} more ranges"] if len(groups) > _MAX_RANGES else [])


def _byte(value: int) -> str:
    return repr(chr(value)) if 0x20 <= value < 0x7F else f"0x{value:02X}"
