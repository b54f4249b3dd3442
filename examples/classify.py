"""A classifier: one label out of a list, then a code in a given shape."""

from __future__ import annotations

from typing import Literal

import constrained_spec as cs


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", capacity=1024)
    review = "The battery died after two days and nobody answered my mails."
    mood = engine([{"role": "user", "content": f"Is this review positive or negative?\n\n{review}"}],
                  Literal["positive", "negative", "neutral"])  # fmt: skip
    assert mood.parsed in ("positive", "negative", "neutral")
    ticket = engine([{"role": "user", "content": f"Give this complaint a ticket number.\n\n{review}"}],
                    cs.Regex(r"[A-Z]{3}-\d{4}"))  # fmt: skip
    assert len(ticket.text) == 8
    print(mood.parsed, ticket.text)


if __name__ == "__main__":
    main()
