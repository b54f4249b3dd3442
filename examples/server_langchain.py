"""LangChain against the server: a typed answer in three ways, and a stream."""

from __future__ import annotations

from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr
from serving import KEY, serving


class Ticket(BaseModel):
    """A complaint, sorted."""

    topic: str = Field(max_length=30)
    mood: Literal["calm", "annoyed", "angry"]


COMPLAINT = "The battery died after two days and nobody answered my mails. Sort this complaint: topic and mood as JSON."
METHODS: tuple[Literal["json_schema", "function_calling"], ...] = ("json_schema", "function_calling")


def main() -> None:
    with serving() as url:
        model = ChatOpenAI(model="default", base_url=f"{url}/v1", api_key=SecretStr(KEY), temperature=0)
        for method in METHODS:
            ticket = model.with_structured_output(Ticket, method=method).invoke(COMPLAINT)
            assert isinstance(ticket, Ticket)
            print(method, ticket)
        loose = model.bind(response_format={"type": "json_object", "schema": Ticket.model_json_schema()})
        print("json_object", Ticket.model_validate_json(loose.invoke(COMPLAINT).text))

        # What is not OpenAI's own goes into extra_body.
        short = ChatOpenAI(model="default", base_url=f"{url}/v1", api_key=SecretStr(KEY),
                           extra_body={"structured_outputs": {"regex": r"[A-Z]{3}-\d{4}"}})  # fmt: skip
        number = "".join(chunk.text for chunk in short.stream("A ticket number, please."))
        assert len(number) == 8
        print("stream", number)


if __name__ == "__main__":
    main()
