"""A pydantic-ai agent on the server: two tools, a typed result; every call is valid by grammar."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext, Tool, ToolDefinition, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from serving import KEY, serving

City = Literal["Oslo", "Rome", "Lima"]


class Advice(BaseModel):
    city: City
    reason: str = Field(max_length=60)


def weather(city: City) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


def rooms(city: City, balcony: bool) -> str:
    """Hotel rooms of a city."""
    return f"3 rooms in {city}, {'all' if balcony else 'none'} with a balcony"


def once(context: RunContext[object], tool: ToolDefinition) -> ToolDefinition | None:
    """Offers a tool until it was called: a small model would go on calling."""
    parts = [part for message in context.messages for part in message.parts]
    called = any(isinstance(part, ToolReturnPart) and part.tool_name == tool.name for part in parts)
    return None if called else tool


def main() -> None:
    with serving() as url:
        model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
        agent = Agent(model, output_type=Advice, tools=[Tool(weather, prepare=once), Tool(rooms, prepare=once)],
                      model_settings={"temperature": 0, "parallel_tool_calls": False})  # fmt: skip
        done = agent.run_sync("Where should I spend three nights: Oslo, Rome or Lima?")
        assert isinstance(done.output, Advice)
        print(done.output, f"after {done.usage.requests} requests and {done.usage.tool_calls} calls of tools")


if __name__ == "__main__":
    main()
