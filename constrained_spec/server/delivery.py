"""How the answer is delivered: streaming, usage, priority, time limit, and what is reported beside the text."""

from __future__ import annotations

from typing import Any

from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError
from constrained_spec.server.sampling import IGNORED


def read_delivery(fields: Fields) -> dict[str, Any]:
    """Fields of ``Plan`` that every endpoint shares.

    ``priority`` is vLLM's: a lower value goes first. ``timeout`` is in seconds. ``stream_options`` says nothing of an
    answer that is not streamed, whose usage is always told.
    """
    stream = fields.flag("stream") or False
    options = fields.inside("stream_options")
    usage = continuous = False
    if options is not None:
        usage = options.flag("include_usage") or False
        continuous = options.flag("continuous_usage_stats") or False
        options.ignore("include_obfuscation")
        options.finish()
        fields.ignored += options.ignored
    user = fields.text("user")
    fields.ignore(*IGNORED, "request_id")
    timeout = fields.number("timeout")
    if timeout is not None and timeout <= 0:
        raise BodyError("timeout is a positive number of seconds", code="invalid_value", param="/timeout")
    return {
        "stream": stream,
        "include_usage": stream and usage,
        "continuous_usage": stream and continuous,
        "user": user,
        "priority": -(fields.integer("priority", least=-(2**31), most=2**31) or 0),
        "timeout": timeout,
        "return_spec_metrics": fields.flag("return_spec_metrics") or False,
        "return_rounds": fields.flag("return_rounds") or False,
    }
