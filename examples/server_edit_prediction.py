"""An edit of a file: its old text is sent along as the prediction, and the server drafts from it.

A prediction changes the speed and never the text. It goes together with everything else, here with a constraint.
"""

from __future__ import annotations

from openai import OpenAI
from openai.types.chat import ChatCompletion
from serving import KEY, serving

FILE = """\
def area(width: float, height: float) -> float:
    return width * height

def perimeter(width: float, height: float) -> float:
    return 2 * (width + height)
"""
EDIT = f"Rename the function area to surface. Answer with the whole file.\n\n{FILE}"


def edit(client: OpenAI, **more: object) -> ChatCompletion:
    body = {"structured_outputs": {"regex": r"def surface\([ -~\n]*"}, **more}
    body["extra"] = {"speculation": "fixed"}  # the default drafts only as far as it pays
    return client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": EDIT}], temperature=0, max_tokens=96, extra_body=body
    )


def main() -> None:
    with serving() as url, OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        edited = edit(client, prediction={"type": "content", "content": FILE})
        text = edited.choices[0].message.content
        assert text is not None and text.startswith("def surface(")
        assert edited.usage is not None and edited.usage.completion_tokens_details is not None
        tokens = edited.usage.completion_tokens_details
        print(text)
        print(f"{edited.usage.completion_tokens} tokens; of the prediction {tokens.accepted_prediction_tokens} stood, "
              f"{tokens.rejected_prediction_tokens} did not")  # fmt: skip
        assert (tokens.accepted_prediction_tokens or 0) > 0
        assert edit(client).choices[0].message.content == text


if __name__ == "__main__":
    main()
