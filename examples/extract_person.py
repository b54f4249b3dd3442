"""A pydantic object from a text: the answer is an instance, and the figures say what speculation saved."""

from __future__ import annotations

from pydantic import BaseModel

import constrained_spec as cs


class Person(BaseModel):
    name: str
    age: int
    city: str


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", capacity=1024)
    text = "Tomas Lindqvist, 52, restores wooden boats in Gothenburg."
    result = engine([{"role": "user", "content": f"Extract the person as JSON.\n\n{text}"}], Person)
    assert isinstance(result.parsed, Person)
    print(result.parsed)
    print(f"{result.usage.completion_tokens} tokens in {result.speculation.target_passes} target passes")


if __name__ == "__main__":
    main()
