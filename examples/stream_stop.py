"""A streamed answer with stop strings: pieces are committed text only and never change afterwards."""

from __future__ import annotations

import constrained_spec as cs


def main() -> None:
    engine = cs.Engine.load("smollm2-135m", capacity=1024)
    messages = [{"role": "user", "content": "List three fruits, then three colours."}]
    shown = ""
    for piece in engine.stream(messages, stop=["\n\n", "3."], max_tokens=60, seed=7, temperature=0.7):
        print(piece.text, end="", flush=True)
        shown += piece.text
        if piece.result is not None:
            assert shown == piece.result.text
            assert "3." not in shown
            print(f"\n[{piece.result.finish_reason}, {piece.result.speculation.target_passes} target passes]")


if __name__ == "__main__":
    main()
