"""Two answers at once in one event loop, and a third that is given up on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import constrained_spec as cs


async def tell(engine: cs.Engine, name: str, question: str, constraint: object = None) -> cs.Result[Any]:
    result = None
    async for piece in engine.astream([{"role": "user", "content": question}], constraint, max_tokens=40):
        print(f"{name}: {piece.text!r} {'+'.join(piece.origins)}")
        result = piece.result
    assert result is not None
    return result


async def main() -> None:
    engine = cs.Engine.load("smollm2-135m", slots=2, capacity=512)
    dates = cs.library.get("iso_date")
    first, second = await asyncio.gather(
        tell(engine, "date", "When was the first moon landing?", dates),
        tell(engine, "text", "Say hello in one sentence."),
    )
    assert len(first.text) >= 10
    assert second.usage.completion_tokens > 0

    ticket = engine.submit("Once upon a time", max_tokens=400)
    async for piece in ticket:
        print("story:", repr(piece.text))
        break
    ticket.cancel()
    try:
        await ticket.aresult()
    except cs.RequestCancelled:
        print("story: given up")
    engine.close()


if __name__ == "__main__":
    asyncio.run(main())
