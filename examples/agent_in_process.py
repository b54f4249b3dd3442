"""An agent inside your own program: no server, two tools, a typed result; every call is valid by grammar."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

import constrained_spec as cs

City = Literal["Oslo", "Rome", "Lima"]


class Advice(BaseModel):
    city: City
    reason: str = Field(max_length=60)


def weather(city: City) -> str:
    return f"21 degrees in {city}"


def rooms(city: City, nights: Annotated[int, Field(ge=1, le=9)]) -> str:
    return f"3 rooms in {city} for {nights} nights"


TOOLS: dict[str, Any] = {"weather": weather, "rooms": rooms}


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", capacity=1024)
    tools = {name: {"name": name, "parameters": TypeAdapter(tool).json_schema()} for name, tool in TOOLS.items()}
    talk = [{"role": "system", "content": f"Call these tools, then advise: {list(tools.values())}"},
            {"role": "user", "content": "Where should I spend three nights: Oslo, Rome or Lima?"}]  # fmt: skip
    while tools:  # each is called once
        turn = engine(talk, cs.ToolCalls(tuple(tools.values()), choice="required", parallel=False), max_tokens=64)
        assert turn.parsed is not None
        _, [(name, arguments)] = turn.parsed  # the text around the calls, and the calls
        found = TOOLS[name](**arguments)
        print(name, arguments, "->", found)
        talk += [{"role": "assistant", "content": turn.text}, {"role": "user", "content": found}]
        del tools[name]
    advice = engine([*talk, {"role": "user", "content": "Your advice as JSON: city and reason."}], Advice)
    assert isinstance(advice.parsed, Advice)
    print(advice.parsed)


if __name__ == "__main__":
    main()
