"""Every drafter and verifier by its name, on the real model: the same greedy text as target-only decoding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from constrained_spec.api import Engine, Options
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.config import APPROXIMATE, DRAFTERS, VERIFIERS
from constrained_spec.errors import ConfigError
from tests.engine.test_greedy_identity import CONSTRAINTS, PROMPTS

pytestmark = pytest.mark.model

# The prompt whose answer each constraint gets here; two places apart, so that no two are alike.
ASK = {name: [{"role": "user", "content": PROMPTS[2 * i]}] for i, name in enumerate(CONSTRAINTS)}
ALONE = (
    "suffix", "prediction", "early-exit", "quantized", "tree", "mixture", "auto", "medusa", "eagle", "translate",
    "model",
)  # fmt: skip


@pytest.fixture(scope="module")
def both(smollm2: Engine, draft: TransformersModel) -> Engine:
    return Engine(smollm2.model, draft)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("drafter", ALONE)
def test_greedy_identity(smollm2: Engine, both: Engine, drafter: str, constraint: str) -> None:
    engine = both if drafter in ("translate", "model", "mixture", "suffix") else smollm2
    plain = engine.generate(ASK[constraint], CONSTRAINTS[constraint], max_tokens=24, speculation=False)
    options: Options = {"max_tokens": 24, "drafter": drafter, "gamma": 6}
    if drafter == "prediction":
        # Most of the answer, with a hole and an insertion.
        options["prediction"] = plain.text[: len(plain.text) // 2] + " well" + plain.text[len(plain.text) // 2 + 3 :]
    for _ in range(2):  # the second time the suffix drafter knows the answer
        result = engine.generate(ASK[constraint], CONSTRAINTS[constraint], **options)
        assert result.tokens == plain.tokens
        assert result.speculation.disabled_reason is None
        assert result.exactness == "exact"
        judged = result.speculation.by_position
        assert all(0 <= stood <= tried for tried, stood in judged)
        assert sum(stood for _, stood in judged) == result.speculation.accepted
    if drafter == "suffix":
        assert result.speculation.accepted > 0


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("constraint", ["none", "schema"])
def test_every_verifier_is_greedy_at_temperature_zero(both: Engine, verifier: str, constraint: str) -> None:
    plain = both.generate(ASK[constraint], CONSTRAINTS[constraint], max_tokens=24, speculation=False)
    result = both.generate(ASK[constraint], CONSTRAINTS[constraint], max_tokens=24, verifier=verifier)
    assert result.tokens == plain.tokens and result.exactness == "exact"


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_sampled_text_says_whether_it_is_exact(both: Engine, verifier: str) -> None:
    options: Options = {"max_tokens": 16, "temperature": 1.0, "seed": 5, "verifier": verifier}
    result = both.generate(ASK["none"], **options)
    assert result.exactness == ("approximate" if verifier in APPROXIMATE else "exact")
    assert both.generate(ASK["none"], **options).tokens == result.tokens


@pytest.mark.parametrize("drafter", ["early-exit", "quantized", "tree", "eagle", "medusa", "model", "auto"])
def test_the_invariant_verifier_gives_the_text_of_the_seed(both: Engine, smollm2: Engine, drafter: str) -> None:
    engine = both if drafter == "model" else smollm2
    options: Options = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.95, "seed": 3, "verifier": "invariant"}
    without: Options = {**options, "speculation": False}
    having: Options = {**options, "drafter": drafter}
    plain = engine.generate(ASK["schema"], CONSTRAINTS["schema"], **without)
    result = engine.generate(ASK["schema"], CONSTRAINTS["schema"], **having)
    assert result.tokens == plain.tokens and result.speculation.disabled_reason is None


@pytest.mark.parametrize("drafter", ["none", "forced", "early-exit", "quantized", "tree", "eagle", "medusa", "model"])
def test_the_time_of_draft_models_is_told_apart(both: Engine, drafter: str) -> None:
    """Drafting without a model has none of it, and with one it is a part of drafting, and none of the overhead."""
    times = both.generate(ASK["schema"], CONSTRAINTS["schema"], max_tokens=24, drafter=drafter, gamma=4).timing
    assert (times.draft_s > 0) == (drafter not in ("none", "forced"))
    assert times.draft_s <= times.propose_s
    assert times.forward_s + times.draft_s + times.overhead_s < times.total_s


def test_predicted_outputs_are_counted(smollm2: Engine) -> None:
    plain = smollm2.generate(ASK["none"], max_tokens=32, speculation=False)
    result = smollm2.generate(ASK["none"], max_tokens=32, prediction=plain.text)
    assert result.tokens == plain.tokens
    assert result.usage.accepted_prediction_tokens >= 8
    proposed, accepted = result.speculation.by_source["prediction"]
    assert result.usage.accepted_prediction_tokens == accepted
    assert result.usage.rejected_prediction_tokens == proposed - accepted


def test_namespaces_share_nothing(smollm2: Engine) -> None:
    engine = Engine(smollm2.model, history_bytes=1 << 20)
    options: Options = {"max_tokens": 24, "drafter": "suffix"}
    runs: list[Options] = [{**options, "namespace": namespace} for namespace in "aba"]
    first, other, again = (engine.generate(ASK["none"], **run) for run in runs)
    assert first.tokens == other.tokens == again.tokens
    assert other.speculation.accepted <= first.speculation.accepted < again.speculation.accepted


@pytest.mark.parametrize(
    ("drafter", "options", "named"),
    [
        ("model", {}, "drafter"), ("translate", {}, "drafter"), ("prediction", {}, "prediction"),
        ("ngram", {"prediction": "x"}, "prediction"),
    ],
)  # fmt: skip
def test_what_a_drafter_lacks_is_named(smollm2: Engine, drafter: str, options: Options, named: str) -> None:
    given: Options = {**options, "drafter": drafter, "max_tokens": 2}
    with pytest.raises(ConfigError) as caught:
        smollm2.generate("x", **given)
    assert caught.value.param == named


def test_all_names_are_covered() -> None:
    assert set(ALONE) | {"none", "forced", "ngram"} == set(DRAFTERS)
    check: Callable[..., None] = Engine.check
    for name in DRAFTERS:
        check(drafter=name)
