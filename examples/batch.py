"""Many prompts at once: they share each forward pass, and each text is the one it would be alone."""

from __future__ import annotations

from pydantic import BaseModel

import constrained_spec as cs


class Person(BaseModel):
    name: str
    age: int


TEXTS = ["Ada Lovelace died at 36.", "Grace Hopper lived to be 85.", "Alan Turing was 41 when he died."]


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", slots=4, capacity=512)
    prompts = [[{"role": "user", "content": f"{text} Extract the name and the age as JSON."}] for text in TEXTS]
    results = engine.batch(prompts, Person, max_tokens=64)
    for result in results:
        print(result.parsed)
    alone = [engine.generate(prompt, Person, max_tokens=64, speculation="off") for prompt in prompts]
    assert [r.text for r in results] == [r.text for r in alone]
    seen = engine.snapshot()
    print(f"{seen.completion_tokens} tokens in {seen.steps} forward passes")
    engine.close()


if __name__ == "__main__":
    main()
