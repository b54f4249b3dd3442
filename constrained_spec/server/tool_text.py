"""Tools and earlier calls as plain text, for models whose chat template shows neither."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from constrained_spec.server.plan import ToolPlan, ToolSyntax


def describe_tools(shown: Sequence[Mapping[str, Any]], plan: ToolPlan) -> str:
    """A system message that lists the tools and shows how a call is written."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in shown)
    if plan.syntax == "raw":
        return f"These tools exist:\n{listed}\nAnswer with the input of {plan.choice} alone, as plain text."
    arguments = {"parameter": "value"}
    example = written_calls([("name of the tool", arguments)], plan.syntax)
    text = f"You can call these tools:\n{listed}\nA call is written like this:\n{example}"
    if plan.choice == "required":
        return f"{text}\nAnswer with a call."
    return text if plan.choice in ("auto", "none") else f"{text}\nAnswer with a call of {plan.choice}."


def written_calls(calls: Sequence[tuple[str, Mapping[str, Any]]], syntax: ToolSyntax) -> str:
    """Calls as the grammar of ``syntax`` has them (see ``grammars.tools``)."""
    key = "parameters" if syntax == "llama3" else "arguments"
    texts = [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]
    if syntax == "llama3":
        return "; ".join(texts)
    if syntax in ("mistral", "json"):
        return ("[TOOL_CALLS] " if syntax == "mistral" else "") + f"[{', '.join(texts)}]"
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
