"""Every grammar of the library by its examples, and the exact ones by more than examples."""

from __future__ import annotations

import ast
import datetime
import ipaddress
import json
import random
import re

import numpy as np
import pytest

from constrained_spec.backends.catalogue import ensure
from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.errors import RequestError
from constrained_spec.grammars import library
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.types import Vocabulary

NAMES = (
    "arithmetic", "cron", "csv_row", "email", "ipv4", "ipv6", "iso_date", "iso_datetime", "iso_time", "json",
    "json_lines", "phone_e164", "python_expression", "semver", "sql_select", "unified_diff", "url", "uuid",
)  # fmt: skip


def byte_vocabulary() -> Vocabulary:
    """256 bytes and EOS."""
    return Vocabulary((*(bytes([b]) for b in range(256)), None), (256,), {"<eos>": 256}, lambda t: list(t.encode()))


def holds(grammar: Grammar, ids: list[int]) -> bool:
    matcher = grammar.matcher()
    return all(matcher.advance(i) for i in ids) and matcher.is_complete


@pytest.fixture(scope="module")
def real_vocabulary() -> Vocabulary:
    from transformers import AutoTokenizer

    return build_vocabulary(AutoTokenizer.from_pretrained(ensure("smollm2-135m")), 49152, [2])


def test_the_library_is_complete() -> None:
    assert library.names() == NAMES
    for name in NAMES:
        entry = library.describe(name)
        assert entry.name == name and entry.description.endswith(".") and entry.kind in ("regex", "lark")
        assert len(entry.valid) >= 6 and len(entry.invalid) >= 8
        assert library.get(name) == entry.constraint
        assert isinstance(library.get(name), Regex) == (entry.kind == "regex")


def test_an_unknown_name() -> None:
    with pytest.raises(RequestError, match=r"did you mean .*ipv4"):
        library.get("ipv5")
    with pytest.raises(RequestError, match="one of arithmetic"):
        library.describe("../../errors")


@pytest.mark.parametrize("name", NAMES)
def test_examples_over_bytes(name: str) -> None:
    entry = library.describe(name)
    grammar = compile_constraint(entry.constraint, byte_vocabulary())
    assert isinstance(grammar, DfaGrammar) == (entry.kind == "regex"), "regular ones run on our own automaton"
    for text in entry.valid:
        assert holds(grammar, list(text.encode())), text
    for text in entry.invalid:
        assert not holds(grammar, list(text.encode())), text


@pytest.mark.model
@pytest.mark.parametrize("name", ["cron", "ipv6", "iso_date", "json", "python_expression", "semver", "sql_select"])
def test_examples_over_a_real_vocabulary(name: str, real_vocabulary: Vocabulary) -> None:
    entry = library.describe(name)
    grammar = compile_constraint(entry.constraint, real_vocabulary)
    for text in entry.valid:
        assert holds(grammar, real_vocabulary.encode(text)), text
    for text in entry.invalid:
        assert not holds(grammar, real_vocabulary.encode(text)), text


@pytest.mark.parametrize("name", ["email", "iso_date", "iso_datetime", "iso_time", "ipv4", "ipv6", "semver", "url"])
def test_regexes_agree_with_pythons(name: str) -> None:
    entry = library.describe(name)
    pattern = re.compile(entry.text)
    grammar = compile_constraint(entry.constraint, byte_vocabulary())
    rng = random.Random(3)
    for _ in range(300):  # near misses: one character of a valid text changed, dropped or doubled
        text = rng.choice(entry.valid)
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((rng.choice("0159:.-+TZaf%"), "", text[at] * 2)) + text[at + 1 :]
        assert holds(grammar, list(text.encode())) == bool(pattern.fullmatch(text)), text


def test_dates_are_the_calendars() -> None:
    grammar = compile_constraint(library.get("iso_date"), byte_vocabulary())
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9999):
        for month in range(14):
            for day in range(34):
                try:
                    datetime.date(year, month, day)
                    real = True
                except ValueError:
                    real = False
                text = f"{year:04}-{month:02}-{day:02}"
                assert holds(grammar, list(text.encode())) == real, text


def test_ipv6_is_the_standard_librarys() -> None:
    grammar = compile_constraint(library.get("ipv6"), byte_vocabulary())
    rng = random.Random(5)
    seen = {True: 0, False: 0}
    for _ in range(3000):
        parts = [rng.choice(("0", "1", "ffff", "12a")) for _ in range(rng.randint(0, 9))]
        if parts and rng.random() < 0.3:
            parts[-1] = "1.2.3.4"
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            parts.insert(rng.randint(0, len(parts)), "")
        text = rng.choice(("", "", ":")) + ":".join(parts) + rng.choice(("", "", ":"))
        try:
            ipaddress.IPv6Address(text)
            real = True
        except ValueError:
            real = False
        seen[real] += 1
        assert holds(grammar, list(text.encode())) == real, text
    assert min(seen.values()) > 100


@pytest.mark.parametrize("name", ["json", "json_lines", "python_expression", "arithmetic", "sql_select"])
def test_what_a_random_model_writes_is_read_by_the_real_parser(name: str) -> None:
    vocabulary = byte_vocabulary()
    grammar = compile_constraint(library.get(name), vocabulary)
    rng = random.Random(8)
    row = np.empty(vocabulary.mask_words, np.int32)
    read = 0
    for _ in range(60):
        matcher, text = grammar.matcher(), b""
        for _ in range(60):
            matcher.mask_into(row)
            legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            assert legal, f"a dead end after {text!r}"
            if 256 in legal and (len(text) > 2 or len(legal) == 1):
                break
            plain = [i for i in legal if 32 <= i < 127]
            token = rng.choice(plain or [i for i in legal if i != 256])
            assert matcher.advance(token)
            text += bytes([token])
        if not matcher.is_complete:
            continue
        read += 1
        if name == "json":
            json.loads(text)
        elif name == "json_lines":
            assert [json.loads(line) for line in text.decode().splitlines()]
        elif name != "sql_select":
            ast.parse(text.decode().replace("^", "**"), mode="eval")
    assert read > 15


@pytest.mark.parametrize("name", ["json", "json_lines", "arithmetic", "sql_select", "python_expression"])
def test_no_endless_white_space(name: str) -> None:
    entry = library.describe(name)
    grammar = compile_constraint(entry.constraint, byte_vocabulary())
    for text in entry.valid:
        for at in range(len(text) + 1):
            matcher = grammar.matcher()
            quoted = text[:at].count('"') % 2 or text[:at].count("'") % 2
            if quoted or not all(matcher.advance(b) for b in text[:at].encode()):
                continue
            taken = 0
            while taken < 60 and any(matcher.advance(b) for b in b"\n \t\r"):
                taken += 1
            assert taken < 50, text[:at]
