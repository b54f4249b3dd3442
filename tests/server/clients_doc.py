"""Writes docs/clients.md: ``python -m tests.server.clients_doc``. Its tables are the tests' data and the code's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from constrained_spec.server import chat, llama_fields, sampling
from constrained_spec.server.facts import FIM_FAMILIES
from tests.server.plan_facts import FACTS
from tests.server.recorded import Recorded, outcome, recorded
from tests.server.test_constraint_spellings import SCHEMA, SPELLINGS, TEXT

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
_CLIENTS = {
    "openai": "openai-python", "pydantic-ai": "pydantic-ai", "langchain": "LangChain", "instructor": "instructor",
    "outlines+hf": "Outlines, Hugging Face", "litellm": "LiteLLM",
}  # fmt: skip

_TEXT = """\
# What clients send, and what becomes of it

The rule: a field is honoured, or the request is answered 400 with a body that names it (`param` is a JSON pointer into
the request, `code` says what is wrong). Nothing is dropped silently. `null` is the same as absent.

## Recorded requests

What real clients sent, replayed by the tests against a model without tokens for filling in the middle.
`max_tokens` is what the context holds unless the request says otherwise (16 for `/v1/completions`), and the temperature
is 1 on every endpoint: OpenAI's defaults.

{recorded}

## Constraints

Every spelling gives one constraint. Two different ones are refused (`conflicting_constraints`, both named); two equal
ones are one. `strict` makes no difference: a schema is always enforced, and `additionalProperties` is as the schema
says. `S` stands for a JSON Schema.

{spellings}

- Structural tags: `response_format` of type `structural_tag`, or `structured_outputs.structural_tag` (an object or its
  JSON text), with `structures` and `triggers`, or with `format` made of `triggered_tags`, `tag`, `sequence`,
  `const_string`, `json_schema`, `regex`, `grammar` and `any_text`.
- The notation of a grammar text is told by its first definition, whatever the field is called: `name:` is Lark,
  `name ::=` GBNF (or W3C EBNF, where its own signs show), `name =` ISO EBNF.
- Whitespace of JSON: `one-space` (the default, as `json.dumps` writes), `compact`, `flexible`. A whitespace pattern is
  honoured if it is the empty one (compact), this server's flexible one, or one of these names.
- `extra.on_unsupported: "validate"` generates under a relaxation where a keyword of a schema cannot be enforced, and
  checks the finished value; `extra.nullable` reads that keyword as OpenAPI 3.0 does; `extra.ensure_ascii` writes other
  characters as `\\uXXXX`; `extra.max_depth` bounds how deep values nest.
- A model that writes reasoning blocks may write one before a constrained answer; the constraint holds from its end on.
  Where the chat template opens the block, the answer must close it.

## Tools

- `tool_choice` "none", "auto", "required", a named function or custom tool, and `allowed_tools` are enforced by the
  grammar, in the syntax of the model's chat template (`hermes`, `llama3`, `mistral`, or the configured one). A named
  tool is called exactly once. `parallel_tool_calls: false` allows one call at most.
- A template that does not show tools gets them, and a sample of a call, in the system message; earlier calls are then
  written out in the same syntax.
- A custom tool is called with a JSON object that holds its `input`; a regex is enforced inside that string. Where a
  call of one custom tool is all that may follow (`tool_choice` names it, or requires a call and there is no other
  tool), the whole output is the input, so a Lark grammar can be enforced too. Elsewhere a custom tool with a Lark
  grammar is refused.
- With a constraint on the text: `tool_choice` "none" leaves the constraint; where a call must come, a
  `response_format` has no text to speak of and the call is enforced; with "auto" the answer is calls, or else a text
  that the constraint allows (refused where the two cannot be told apart, as any JSON object and Llama 3's calls).

## Messages

Roles are system, developer (as system), user, assistant, tool and function (as tool). Content is a string or a list of
text parts, which are joined with nothing between. Parts with images, audio or files are refused. Calls of earlier
messages reach the template as objects.

## Sampling, delivery, speculation

- `top_k` -1 and 0 are off. A negative `seed` is read as 64 bits in two's complement (on llama.cpp's endpoints -1 asks
  for a fresh one). `max_completion_tokens` goes before `max_tokens`. `best_of` must equal `n`. `stop_token_ids` may
  name the model's own end tokens, which end the text anyway. `priority` is vLLM's: the lowest goes first.
- `timeout` (seconds) ends the request with an error; `t_max_predict_ms` ends the text.
- `extra`: `drafter`, `gamma`, `verifier`, `speculation` (true, false, "off", "auto", "fixed"), `tokenization`,
  `close_on_length`, `logprobs_mode`, and those of JSON above. None but `tokenization`,
  `close_on_length` and the verifier "typical" changes the law of the text, and answers made with those say so.
- `generation_config` (the JSON text of `transformers chat`) is read for what the body itself does not say; without
  `do_sample` it asks for the greedy text.
- The model names "{aliases}" mean the served model; any other that is not served is answered 404.

Accepted, and without effect on the text: {ignored}.

Offered only with the value that means what happens here anyway; any other is refused:

{neutral}

## Filling in the middle

`/v1/completions` with `suffix`, `/v1/fim/completions` and `/infill` write the prompt with the model's own tokens
({families}), or with the configured `fim_template`. A model with neither is answered 400 (`fim_not_supported`). The
caller's text is never read as a special token. The middle ends before another of those markers.

`/infill` puts `input_extra` behind the model's tokens for files, or as text before the prefix (the name on a line, the
text, an empty line), and `prompt` at the beginning of the middle. `n_indent` ends the text before the first line that
is indented by less. `n_predict: 0` is answered at once. `samplers` says which of temperature, top_k, top_p, min_p and
penalties apply; they apply in this server's order, and "infill" adds nothing. Without effect there: {llama_ignored}.
"""


def document() -> str:
    """The whole document."""
    return _TEXT.format(
        recorded=_recorded(),
        spellings=_spellings(),
        aliases='" and "'.join(sampling.MODEL_ALIASES),
        ignored=_listed([*sampling.IGNORED, "request_id"]),
        neutral=_neutral({**sampling.NEUTRAL, **chat.NEUTRAL, **llama_fields.NEUTRAL}),
        families=_listed(prefix for prefix, _, _, _ in FIM_FAMILIES),
        llama_ignored=_listed(llama_fields.IGNORED),
    )


def _recorded() -> str:
    rows = Counter((_CLIENTS[r.client], _endpoint(r), _sent(r), outcome(r, FACTS)) for r in recorded())
    lines = ["| client | endpoint | beyond model and messages | becomes |", "|---|---|---|---|"]
    for (client, endpoint, sent, becomes), count in rows.items():
        times = f" ({count} times)" if count > 1 else ""
        lines.append(f"| {client}{times} | {endpoint} | {sent} | {becomes.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _endpoint(request: Recorded) -> str:
    return f"`{'' if request.method == 'POST' else request.method + ' '}{request.path}`"


def _sent(request: Recorded) -> str:
    body = request.body or {}
    shown = []
    for name, value in body.items():
        if name in ("model", "messages", "prompt", "input") or (value is False and name == "stream"):
            continue
        text = json.dumps(value) if not isinstance(value, dict | list) else ""
        if isinstance(value, dict):
            text = str(value.get("type") or ", ".join(value))
        shown.append(f"`{name}`" + (f" {text}" if text else ""))
    return ", ".join(shown).replace("|", "\\|") or "nothing"


def _spellings() -> str:
    lines = ["| request | enforced |", "|---|---|"]
    for body, constraint in SPELLINGS:
        text = json.dumps(body).replace(json.dumps(SCHEMA), "S").replace(json.dumps(TEXT), '"S"')
        made = repr(constraint).replace(repr(SCHEMA), "S")
        for default in (", whitespace='one-space'", ", on_unsupported='error'", ", ensure_ascii=False",
                        ", registry=None", ", nullable=False", ", max_depth=None"):  # fmt: skip
            made = made.replace(default, "")
        lines.append(f"| `{text}` | `{made}` |".replace("(a|b)", "(a\\|b)"))
    return "\n".join(lines)


def _neutral(table: Mapping[str, tuple[object, ...]]) -> str:
    rows = [f"| `{name}` | {_values(values)} |" for name, values in sorted(table.items())]
    return "\n".join(["| field | value |", "|---|---|", *rows])


def _values(values: tuple[Any, ...]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values) or "absent"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
