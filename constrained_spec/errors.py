"""Every error this package raises on purpose, as one tree.

    ConstrainedSpecError
      ConfigError                 unknown or contradictory option; names it
      RequestError                the caller's request cannot be served as asked (HTTP 400)
        GrammarSyntaxError        the constraint text does not parse; says at which position
        UnsupportedSchemaError    a schema keyword we cannot enforce; JSON pointer and keyword
        UnsatisfiableError        nothing can satisfy the constraint
        GrammarBudgetError        the constraint exceeds a declared budget
        VocabularyMismatchError   draft and target vocabularies differ
      ModelError                  a model cannot be loaded, or its cache kind is not supported
      DeadEndError                the constraint leaves no next token; says where
      OverloadedError             the queue is full; says when to come again (HTTP 429)
      DeadlineError               the request's time ran out
      RequestCancelled            its caller, or the closing engine, gave it up
      EngineError                 the engine's thread broke; the request was lost with it
      TransactionError            the transaction was misused: a fault of ours
      AuditFailure                an audit found the contract broken

A server maps ``RequestError`` to status 400 and the rest to 500.
"""

from __future__ import annotations


class ConstrainedSpecError(Exception):
    """Root of the tree. ``param`` names the option or JSON pointer at fault, ``hint`` says what to do."""

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint

    def __str__(self) -> str:
        where = f" (at {self.param})" if self.param else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.message}{where}{hint}"


class ConfigError(ConstrainedSpecError):
    """An option is unknown, out of range, or contradicts another one."""


class RequestError(ConstrainedSpecError):
    """The request cannot be honoured as asked."""


class GrammarSyntaxError(RequestError):
    """The constraint's text does not parse. ``position`` is a character offset where known."""

    def __init__(
        self, message: str, *, position: int | None = None, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, param=param, hint=hint)
        self.position = position


class UnsupportedSchemaError(RequestError):
    """A schema keyword that cannot be enforced. ``pointer`` is an RFC 6901 JSON pointer into the schema."""

    def __init__(self, message: str, *, pointer: str, keyword: str, hint: str | None = None) -> None:
        super().__init__(message, param=pointer or "/", hint=hint)
        self.pointer = pointer
        self.keyword = keyword


class UnsatisfiableError(RequestError):
    """No string, or no token sequence of this vocabulary, satisfies the constraint."""


class GrammarBudgetError(RequestError):
    """A declared limit was exceeded. ``limit`` names it."""

    def __init__(self, message: str, *, limit: str, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, param=param, hint=hint)
        self.limit = limit


class VocabularyMismatchError(RequestError):
    """Draft and target do not share a vocabulary."""


class ModelError(ConstrainedSpecError):
    """A model cannot be found, read, or run by this engine."""


class DeadEndError(ConstrainedSpecError):
    """The pipeline leaves no token with positive probability."""


class OverloadedError(ConstrainedSpecError):
    """The queue is full. ``retry_after``: seconds after which a place is likely to be free."""

    def __init__(self, message: str, *, retry_after: float, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, param=param, hint=hint)
        self.retry_after = retry_after


class DeadlineError(ConstrainedSpecError):
    """The request's deadline passed before it was finished."""


class RequestCancelled(ConstrainedSpecError):
    """The request was given up before it was finished."""


class EngineError(ConstrainedSpecError):
    """The engine cannot serve: its thread broke, or it was closed."""


class TransactionError(ConstrainedSpecError):
    """The transaction protocol was broken; always a fault of this package."""


class AuditFailure(ConstrainedSpecError):
    """An audit check failed."""
