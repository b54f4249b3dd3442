"""What is audited: one target, one drafter, one verifier, and the requests that they are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from constrained_spec.api import Engine, Message, Result
from constrained_spec.api.drafters import Drafters
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.manifest import Part
from constrained_spec.processors.pipeline import Pipeline

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task:
    """One request of a suite. ``prediction`` is the expected text, where the suite has one."""

    suite: str
    id: str
    prompt: str | Sequence[Message]
    output_type: object = None
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class Effort:
    """How much evidence is gathered. A larger effort sees smaller biases and narrower differences of speed."""

    name: str
    samples: int  # per regression case
    control_samples: int  # at most, per planted fault
    tasks: int  # per suite
    max_tokens: int
    repeats: int
    gammas: tuple[int, ...]
    concurrency: tuple[int, ...]
    cut_gamma: int  # drafts per block of the forced rejections
    detectable_tv: float  # every bias of that total variation must be seen, or the samples do not suffice


QUICK = Effort("quick", 400, 800, 3, 48, 2, (2, 8), (1, 4), 4, 0.25)
FULL = Effort("full", 4000, 1500, 12, 128, 4, (1, 2, 4, 8, 16), (1, 2, 4, 8), 8, 0.1)


@dataclass(frozen=True, slots=True)
class Subject:
    """The system under audit."""

    model: TransformersModel
    draft_model: TransformersModel | None
    drafter: str
    verifier: str
    gamma: int
    tasks: tuple[Task, ...]
    effort: Effort
    parts: Mapping[str, Part] | None = None
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pipeline", Pipeline(self.model.vocabulary))

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """An engine of its own over the model, closed behind the block. In the block nothing else may use the model."""
        self.clear()
        engine = Engine(self.model, self.draft_model, parts=self.parts)
        try:
            yield engine
        finally:
            engine.close()
            self.clear()

    def clear(self) -> None:
        """Empty every slot, for what uses the model directly."""
        for model in (self.model, self.draft_model):
            for slot in range(model.slots if model is not None else 0):
                if model is not None and model.length(slot):
                    model.set_length(slot, 0)

    def named_drafter(self, grammar_key: str | None = None) -> Drafter | None:
        """The audited drafter as an object, to be wrapped; None for target-only."""
        drafters = Drafters(self.model, self.pipeline, self.draft_model, self.parts, 0)
        prediction = "Monday, Tuesday, Wednesday" if self.drafter == "prediction" else None
        return drafters.make(
            self.drafter, prediction=prediction, namespace="", grammar_key=grammar_key, verifier=self.verifier
        )

    @property
    def speculation(self) -> dict[str, Any]:
        """Options of a request that drafts as audited: as much as gamma says, whether it pays or not."""
        return {"drafter": self.drafter, "gamma": self.gamma, "verifier": self.verifier, "speculation": "fixed"}

    def chosen_tasks(self) -> list[Task]:
        """The first tasks of each suite, as many as the effort says."""
        taken: dict[str, list[Task]] = {}
        for task in self.tasks:
            taken.setdefault(task.suite, [])
            if len(taken[task.suite]) < self.effort.tasks:
                taken[task.suite].append(task)
        return [task for tasks in taken.values() for task in tasks]


TARGET_ONLY: dict[str, Any] = {"drafter": "none", "gamma": 0, "speculation": "off"}


def generate(engine: Engine, prompt: Any, output_type: object = None, **options: Any) -> Result[Any]:
    """One request; options are checked by the engine, not by the type checker."""
    return engine.generate(prompt, output_type, **cast(Any, options))


def run_task(engine: Engine, task: Task, **options: Any) -> Result[Any]:
    """One task of a suite. Its prediction goes to the drafters that use one."""
    if task.prediction is not None and options.get("drafter") in ("prediction", "mixture", "auto"):
        options["prediction"] = task.prediction
    return generate(engine, task.prompt, task.output_type, **options)


def in_parallel(function: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """Results in order, of ``workers`` requests at a time."""
    if workers == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
