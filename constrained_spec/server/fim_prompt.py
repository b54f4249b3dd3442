"""Prompts that ask for what stands between two texts, from the model's own tokens or a configured template."""

from __future__ import annotations

from collections.abc import Sequence

from constrained_spec.server.plan import BodyError, FimTokens, ModelFacts
from constrained_spec.server.sampling import Asked

REPOSITORY = "project"  # stands behind the repository token: the editor does not tell the name


def fim_prompt(
    prefix: str | list[int],
    suffix: str,
    facts: ModelFacts,
    at: str,
    *,
    files: Sequence[tuple[str, str]] = (),
    after: str = "",
) -> str | list[int]:
    """The prompt that asks for what stands between ``prefix`` and ``suffix``.

    The caller's text is tokenised as plain text, so no part of it can pass for one of the model's tokens. ``files`` are
    (name, text) of the same project; ``after`` begins the middle. With a template it is one text instead. Raises
    ``BodyError`` where the model has no such tokens (``fim_not_supported``).
    """
    fim = facts.fim
    if fim is None:
        raise BodyError(
            f"{facts.names[0]} has no tokens for filling in the middle",
            code="fim_not_supported",
            param=at,
            hint="serve a model that has them, or configure fim_template with {prefix} and {suffix}",
        )
    if fim.template is not None:
        if not isinstance(prefix, str):
            raise BodyError("with fim_template a prompt is text", code="invalid_type", param="/prompt")
        before = plain_files(files) + prefix
        # One pass, so that braces in the texts stay as they are.
        head, middle, tail, prefix_first = _cut(fim.template)
        first, second = (before, suffix) if prefix_first else (suffix, before)
        return head + first + middle + second + tail + after
    context = _context(files, fim, facts)
    before_ids = prefix if isinstance(prefix, list) else facts.encode(prefix)
    if files and fim.file is None:
        before_ids = facts.encode(plain_files(files)) + before_ids
    first_part = [fim.prefix, *before_ids]
    second_part = [fim.suffix, *facts.encode(suffix)]
    if fim.order == "spm":
        first_part, second_part = second_part, first_part
    middle_ids = [] if fim.middle is None else [fim.middle]
    return [*facts.bos, *context, *first_part, *second_part, *middle_ids, *facts.encode(after)]


def plain_files(files: Sequence[tuple[str, str]]) -> str:
    """Other files as text, for models without tokens for them: the name on a line, the text, an empty line."""
    return "".join(f"{name}\n{text.rstrip()}\n\n" for name, text in files)


def fim_stops(asked: Asked, facts: ModelFacts) -> None:
    """The middle also ends where the model begins another part of such a prompt."""
    assert facts.fim is not None, "fim_prompt refused it"
    if facts.fim.stops:
        asked.options["stop"] = (*asked.options.get("stop", ()), *facts.fim.stops)


def _context(files: Sequence[tuple[str, str]], fim: FimTokens, facts: ModelFacts) -> list[int]:
    """Other files behind the model's own tokens for them, and the token that begins the file at hand."""
    if not files or fim.file is None:
        return []
    ids = [] if fim.repository is None else [fim.repository, *facts.encode(f"{REPOSITORY}\n")]
    for name, text in files:
        ids += [fim.file, *facts.encode(f"{name}\n{text}\n")]
    return [*ids, fim.file, *facts.encode("filename\n")]


def _cut(template: str) -> tuple[str, str, str, bool]:
    """(before, between, after, prefix first) of a template's two places."""
    prefix_first = template.index("{prefix}") < template.index("{suffix}")
    first, second = ("{prefix}", "{suffix}") if prefix_first else ("{suffix}", "{prefix}")
    head, _, rest = template.partition(first)
    middle, _, tail = rest.partition(second)
    return head, middle, tail, prefix_first
