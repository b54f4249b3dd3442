"""Formats: which the engine enforces, which are patterns for us, and which say nothing of the text."""

from __future__ import annotations

ENGINE_FORMATS = frozenset(
    ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # fmt: skip

# Names in wide use for what a standard name says, and names for more than we write: all of it is in ASCII.
ALIASES = {
    "datetime": "date-time", "url": "uri", "ip-address": "ipv4", "host-name": "hostname", "guid": "uuid", "iri": "uri",
    "iri-reference": "uri-reference", "idn-email": "email", "idn-hostname": "hostname",
}  # fmt: skip

_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_ALPHA_NUM = r"[A-Za-z0-9_]|%[0-9A-Fa-f]{2}"
_TEMPLATE_NAME = rf"(?:{_ALPHA_NUM})(?:\.?(?:{_ALPHA_NUM}))*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE_LITERAL = r"[!#$&()*+,./:;=?@A-Z\[\]_a-z~0-9-]|%[0-9A-Fa-f]{2}"

# Patterns no wider than the format: RFC 6901, relative-json-pointer, RFC 4648, RFC 3986 (with a plain authority or
# none), RFC 6570, CSS hexadecimal colours.
AS_PATTERN = {
    "json-pointer": r"^(?:/(?:[^/~]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",
    "color": r"^#(?:[0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})$",
    "uri-reference": (
        rf"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/{_PCHAR}*)*|{_PCHAR}+(?:/{_PCHAR}*)*)"
        rf"|//[A-Za-z0-9.-]+(?::[0-9]+)?(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
        rf"|(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{{2}})+(?:/{_PCHAR}*)*|){_URI_TAIL}$"
    ),
    "uri-template": (rf"^(?:{_TEMPLATE_LITERAL}|\{{[+#./;?&]?{_TEMPLATE_NAME}(?:,{_TEMPLATE_NAME})*\}})*$"),
}

# Names that a specification defines. Any other says something to its author only: by the specification it is an
# annotation, never a failure.
DEFINED = frozenset((*ENGINE_FORMATS, *ALIASES, *AS_PATTERN, "regex"))

# OpenAPI's and form builders' hints for display, and number formats, which say nothing where a string stands.
ANNOTATIONS = frozenset(
    (
        "password", "byte", "binary", "textarea", "text", "string", "html", "markdown", "int32", "int64", "float",
        "double",
    )
)  # fmt: skip

# Patterns no narrower than the format: enough to see that a value, or another format, is something else.
_WIDER = {
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "date-time": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]",
    "time": r"^[0-9]{2}:[0-9]{2}:",
    "duration": r"^P[0-9TYMWDHS.,]+$",
    "email": r"^[^@]",
    "hostname": r"^[A-Za-z0-9]",
    "ipv4": r"^[0-9.]{7,15}$",
    "ipv6": r"^[0-9A-Fa-f:.%]{2,64}$",
    "uuid": r"^[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}$",
    "uri": r"^[A-Za-z][A-Za-z0-9+.-]*:",
}


def superset(name: str) -> str | None:
    """A pattern that is found in every text of the format ``name``; None where nothing is known."""
    exact = name in ("json-pointer", "relative-json-pointer")
    return AS_PATTERN[name] if exact else _WIDER.get(name)
