"""Filling in the middle, in the three ways that editors and clients ask for it.

A code model has tokens for it. SmolLM2 has none, so its server is told how to write such a prompt: the suffix first,
then the prefix, which the model continues. Without the template the answer is 400 ``fim_not_supported``.
"""

from __future__ import annotations

from httpx2 import Client
from openai import OpenAI
from serving import KEY, serving

TEMPLATE = "# The end of the file:\n{suffix}\n# The whole file:\n{prefix}"
PREFIX = "def area(width, height):\n    return "
SUFFIX = "\n\nprint(area(2, 3))\n"


def main() -> None:
    with serving(f"--fim-template={TEMPLATE}") as url, OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        # OpenAI's legacy endpoint; a constraint goes with it.
        answer = client.completions.create(
            model="default", prompt=PREFIX, suffix=SUFFIX, max_tokens=16, temperature=0,
            extra_body={"structured_outputs": {"regex": r"[a-z*+ ()]{1,24}"}},
        )  # fmt: skip
        middle = answer.choices[0].text
        assert middle and set(middle) <= set("abcdefghijklmnopqrstuvwxyz*+ ()")
        print(PREFIX + middle + SUFFIX)

        with Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as editor:
            asked = {"model": "default", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 12, "stop": ["\n"]}
            mistral = editor.post("/v1/fim/completions", json=asked).raise_for_status().json()
            print("Continue:", repr(mistral["choices"][0]["message"]["content"]))

            asked = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": [], "prompt": "", "n_predict": 12}
            infill = editor.post("/infill", json=asked).raise_for_status().json()
            assert infill["tokens_predicted"] <= 12
            print("llama.vscode:", repr(infill["content"]), infill["timings"]["predicted_n"])


if __name__ == "__main__":
    main()
