"""The exact law of a request on a real model: every output that its grammar leaves, token path by token path."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.errors import ConfigError, DeadEndError
from constrained_spec.grammars.base import Grammar
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction

MAX_OUTPUTS = 64
Path = tuple[int, ...]


def enumerate_law(
    model: LanguageModel, pipeline: Pipeline, prompt: Seq[int], grammar: Grammar | None, sampling: Sampling
) -> dict[Path, float]:
    """Token path -> probability, from the target's own forwards and the pipeline, by the commit rule. Uses slot 0.

    Texts with several tokenisations are several paths. No coin, no drafter and no verifier takes part. Raises
    ``ConfigError`` for more than 64 outputs.
    """
    prompt = list(prompt)
    assert prompt
    model.set_length(0, 0)
    if prompt[:-1]:
        model.score([Block(0, prompt[:-1], want=0)])
    law: dict[Path, float] = {}
    for path, chance in _walk(model, pipeline, prompt, grammar, sampling, (), 1.0):
        law[path] = chance
        if len(law) > MAX_OUTPUTS:
            raise ConfigError(f"the grammar leaves more than {MAX_OUTPUTS} outputs", param="output_type")
    model.set_length(0, 0)
    return law


def _walk(
    model: LanguageModel, pipeline: Pipeline, prompt: list[int], grammar: Grammar | None, sampling: Sampling,
    path: Path, chance: float,
) -> Iterator[tuple[Path, float]]:  # fmt: skip
    s = replayed(model, 0, prompt, grammar, sampling, path, held=len(prompt) - 1)
    if s.finished:
        yield path, chance
        return
    for token, p in enumerate(next_law(model, pipeline, s)):
        if p > 0:
            yield from _walk(model, pipeline, prompt, grammar, sampling, (*path, token), chance * p)


def replayed(
    model: LanguageModel, slot: int, prompt: Seq[int], grammar: Grammar | None, sampling: Sampling, path: Path,
    *, held: int,
) -> Sequence:  # fmt: skip
    """A sequence that committed ``path`` token by token, target-only, without a forward.

    ``held`` tokens of the prompt are in the slot already.
    """
    model.set_length(slot, held)
    s = Sequence(
        prompt=prompt, sampling=sampling, coins=Coins(0), vocabulary=model.vocabulary, target=model, slot=slot,
        capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip
    for token in path:
        with Transaction(s) as tx:
            tx.commit(0, token)
    return s


def next_law(model: LanguageModel, pipeline: Pipeline, s: Sequence) -> list[float]:
    """p(. | what ``s`` has committed), by one forward; the sequence is left as it was. Raises ``DeadEndError``."""
    with Transaction(s) as tx:
        logits = model.score([Block(s.slot, s.pending, want=1)])
        processed = pipeline.process(logits, [tx.position], [s.processors])
        if bool(processed.dead[0]):
            raise DeadEndError("no token is possible here", param="output_type")
        law: list[float] = processed.probabilities()[0].double().tolist()
        return law
