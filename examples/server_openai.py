"""openai-python against the server: a typed answer, a stream, a tool call."""

from __future__ import annotations

import json

from openai import OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionUserMessageParam
from pydantic import BaseModel, Field
from serving import KEY, serving


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def ask(text: str) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


def main() -> None:
    with serving() as url, OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        chat, question = client.chat.completions, ask("Ada Lovelace is 36. Extract her name and age as JSON.")
        answer = chat.parse(model="default", messages=question, response_format=Person, temperature=0)
        assert isinstance(answer.choices[0].message.parsed, Person)
        print(answer.choices[0].message.parsed)

        usage = None
        for event in chat.create(model="default", messages=ask("Say hello."), max_tokens=12, stream=True,
                                 stream_options={"include_usage": True}):  # fmt: skip
            print(event.choices[0].delta.content or "" if event.choices else "", end="", flush=True)
            usage = event.usage or usage
        assert usage is not None and usage.completion_tokens <= 12

        tool = pydantic_function_tool(Person, name="save_person", description="Store a person.")
        called = chat.create(model="default", messages=question, tools=[tool], tool_choice="required",
                             parallel_tool_calls=False, temperature=0)  # fmt: skip
        [call] = called.choices[0].message.tool_calls or []
        assert call.type == "function" and called.choices[0].finish_reason == "tool_calls"
        print("\n", call.function.name, Person(**json.loads(call.function.arguments)))


if __name__ == "__main__":
    main()
