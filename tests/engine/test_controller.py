"""The controller in simulated worlds: what it earns against the best fixed gammas, and how it goes off and comes back.

All draws are seeded, so every figure is the same on every run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import pytest

from constrained_spec.engine.controller import Choice, Controller, RowOutcome, RowState
from constrained_spec.engine.round import RoundTimes
from constrained_spec.state.sequence import Counts
from tests.engine.controller_worlds import Speaker, World

B = 0.02  # seconds of a step for one row without drafts


def flat(_rows: int, drafts: int) -> float:
    return B * (1 + 0.002 * drafts)


def linear(rows: int, drafts: int) -> float:
    return B * (1 + 0.05 * (rows - 1 + drafts))


def saturated(rows: int, drafts: int) -> float:
    return B * (rows + drafts)


def cliff(_rows: int, drafts: int) -> float:
    return B if drafts == 0 else 2.25 * B + 0.015 * B * drafts


def knee(rows: int, drafts: int) -> float:
    return B * (1 + 0.005 * drafts + 0.05 * max(0, rows + drafts - 16))


STEPS = {"flat": flat, "linear": linear, "saturated": saturated, "cliff": cliff, "knee": knee}
SPEAKERS = {
    "one good": [Speaker(0.8)],
    "one fair": [Speaker(0.5)],
    "copies at times": [Speaker(0.9, length=10, speaks=0.3, asking=2e-5, drafting=1e-5)],
    "a draft model": [Speaker(0.8, drafting=0.1 * B)],
    "two good, two bad": [Speaker(0.9), Speaker(0.9), Speaker(0.2), Speaker(0.2)],
    "eight alike": [Speaker(0.8) for _ in range(8)],
}


def adverse(rows: int) -> list[Speaker]:
    return [Speaker(0.0) for _ in range(rows)]


def drafts_at_will(choices: list[Choice]) -> bool:
    """Does any row draft, other than to try?"""
    return any(choice.gamma > 0 and choice.reason != "probe" for choice in choices)


@pytest.mark.parametrize("speakers", SPEAKERS)
@pytest.mark.parametrize("step", STEPS)
def test_it_earns_what_the_best_fixed_gammas_earn(step: str, speakers: str) -> None:
    world = World(STEPS[step], SPEAKERS[speakers])
    controller = Controller()
    learning = world.run(controller, 300)
    assert learning >= 0.9 * world.oracle()
    assert world.run(controller, 1500) >= 0.97 * world.oracle()


@pytest.mark.parametrize("speakers", SPEAKERS)
@pytest.mark.parametrize("step", ["linear", "cliff"])
def test_noise_and_outliers_in_the_clock_do_not_mislead_it(step: str, speakers: str) -> None:
    def noise(draw: random.Random) -> float:
        return draw.lognormvariate(0, 0.05) * (10 if draw.random() < 0.03 else 1)

    world = World(STEPS[step], SPEAKERS[speakers], noise=noise)
    controller = Controller()
    world.run(controller, 300)
    assert world.run(controller, 1500) >= 0.92 * world.oracle()


@pytest.mark.parametrize("at", [1, 2, 3, 10, 11])
def test_one_slow_round_turns_nothing_off(at: int) -> None:
    rounds = iter(range(1, 10_000))
    world = World(linear, [Speaker(0.8)], noise=lambda _: 50.0 if next(rounds) == at else 1.0)
    controller = Controller()
    world.run(controller, 60)
    assert world.run(controller, 300) >= 0.93 * world.oracle()


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_changes_its_speed_changes_no_choice_for_long(factor: float) -> None:
    speed = [1.0]
    world = World(linear, [Speaker(0.8)], noise=lambda _: speed[0])
    controller = Controller()
    world.run(controller, 300)
    speed[0] = factor
    assert world.run(controller, 200) >= 0.9 * world.oracle()


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("step", ["linear", "saturated", "cliff"])
@pytest.mark.parametrize("seed", range(3))
def test_speculation_that_cannot_pay_is_off_within_20_rounds_and_costs_next_to_nothing(
    step: str, rows: int, seed: int
) -> None:
    world = World(STEPS[step], adverse(rows), seed=seed)
    rate = world.run(Controller(), 2000)
    assert rate >= 0.97 * world.rate([0] * rows)
    assert not any(drafts_at_will(choices) for choices in world.history[20:])


@pytest.mark.parametrize("accept", [0.5, 0.9])
def test_good_drafts_do_not_pay_on_saturated_compute(accept: float) -> None:
    world = World(saturated, [Speaker(accept) for _ in range(8)])
    assert world.run(Controller(), 2000) >= 0.97 * world.rate([0] * 8)


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("step", ["linear", "knee", "cliff"])
def test_it_comes_back_when_drafts_become_good(step: str, rows: int) -> None:
    world = World(STEPS[step], adverse(rows))
    controller = Controller()
    world.run(controller, 2000)
    for speaker in world.speakers:
        speaker.accept = 1.0
    dear = 100 * (STEPS[step](rows, 2) / STEPS[step](rows, 0) - 1)
    world.run(controller, int(max(64, dear)) + 5)
    assert world.run(controller, 200) >= 0.85 * world.oracle()


def test_it_goes_off_when_drafts_become_bad() -> None:
    world = World(linear, [Speaker(0.9)])
    controller = Controller()
    world.run(controller, 500)
    world.speakers[0].accept = 0.0
    world.history.clear()
    world.run(controller, 200)
    assert not any(drafts_at_will(choices) for choices in world.history[40:])


def test_a_batch_that_shrinks_speculates_at_once() -> None:
    def full(rows: int, drafts: int) -> float:
        return B * max(1.0, (rows + drafts) / 8)

    world = World(full, [Speaker(0.8) for _ in range(8)])
    controller = Controller()
    world.run(controller, 300)
    assert not any(drafts_at_will(choices) for choices in world.history[100:])
    del world.speakers[1:]
    assert world.run(controller, 100) >= 0.85 * world.oracle()


def test_a_drafter_that_was_long_silent_is_still_asked() -> None:
    world = World(cliff, [Speaker(0.9, speaks=0.0, asking=1e-6)])
    controller = Controller()
    world.run(controller, 1000)
    world.speakers[0].speaks = 1.0
    world.history.clear()
    world.run(controller, 1)
    assert world.history[0][0].gamma > 0


def test_a_new_request_starts_as_its_drafter_fared_before() -> None:
    world = World(linear, adverse(1))
    controller = Controller()
    world.run(controller, 200)
    choices = []
    for key in range(100, 160):
        [choice] = controller.choose([RowState(key=key, limit=24, drafter_name="drafter")])
        [outcome], times = world.play([choice.gamma])
        controller.observe([replace(outcome, key=key)], times)
        choices.append(choice)
    assert not drafts_at_will(choices[30:])


def test_requests_too_short_to_wait_for_a_probe_find_out_that_drafts_became_good() -> None:
    world = World(linear, adverse(1))
    controller = Controller()

    def run(rounds: int) -> list[Choice]:
        choices = []
        for _ in range(rounds):
            key = controller.report().rounds // 3
            [choice] = controller.choose([RowState(key=key, limit=8)])
            [outcome], times = world.play([choice.gamma])
            controller.observe([replace(outcome, key=key)], times)
            controller.forget(key - 1)
            choices.append(choice)
        return choices

    assert not drafts_at_will(run(500)[60:])
    world.speakers[0].accept = 1.0
    assert sum(choice.gamma > 0 for choice in run(140)[-100:]) >= 98


def test_the_requests_own_gamma_is_honoured() -> None:
    world = World(saturated, [Speaker(0.0), Speaker(0.0)])
    controller = Controller()
    for _ in range(50):
        states = [
            RowState(key=0, limit=64, fixed=5),
            RowState(key=1, limit=0),
            RowState(key=2, limit=3, fixed=7),
            RowState(key=3, limit=64, fixed=0),
        ]
        choices = controller.choose(states)
        assert choices == [Choice(5, "fixed"), Choice(0, "off"), Choice(3, "fixed"), Choice(0, "off")]
        world.speakers = [Speaker(0.0)] * 4
        controller.observe(*world.play([choice.gamma for choice in choices]))
    assert controller.report().gamma_mean == 0


def test_no_choice_exceeds_its_limits() -> None:
    world = World(flat, [Speaker(0.95), Speaker(0.95)])
    controller = Controller(max_gamma=20)
    gammas: list[int] = []
    for _ in range(300):
        states = [RowState(key=0, limit=5), RowState(key=1, limit=64)]
        gammas = [choice.gamma for choice in controller.choose(states)]
        assert gammas[0] <= 5
        assert gammas[1] <= 20
        controller.observe(*world.play(gammas))
    assert gammas == [5, 20]


def test_the_same_history_gives_the_same_choices() -> None:
    worlds = [World(cliff, [Speaker(0.7), Speaker(0.3)], seed=3) for _ in range(2)]
    for world in worlds:
        world.run(Controller(), 400)
    assert worlds[0].history == worlds[1].history


def test_a_finished_request_leaves_nothing_behind() -> None:
    controller = Controller()
    world = World(linear, [Speaker(0.5)])
    for key in range(500):
        [choice] = controller.choose([RowState(key=key, limit=8)])
        [outcome], times = world.play([choice.gamma])
        # The engine may close a request before it reports the round.
        controller.forget(key)
        controller.observe([replace(outcome, key=key)], times)
    controller.forget(12345)
    assert controller.report().requests == 0


def test_a_round_that_wrote_a_prompt_or_lost_a_row_tells_nothing_about_the_step() -> None:
    controller = Controller()
    world = World(linear, [Speaker(0.5), Speaker(0.5)])
    for prefill, extra, lost in ((7, 0, 0), (0, 7, 0), (0, 0, 1)):
        states = [RowState(key=i, limit=4, prefill_tokens=prefill) for i in range(2)]
        gammas = [choice.gamma for choice in controller.choose(states)]
        outcomes, times = world.play(gammas)
        controller.observe(outcomes[lost:], times, extra_tokens=extra)
    assert controller.report().step == {}
    assert controller.choose([]) == []


def test_rounds_that_all_write_prompts_do_not_keep_it_from_drafting() -> None:
    controller = Controller()
    world = World(linear, [Speaker(0.9)])
    drafting = 0
    for _ in range(200):
        gammas = [choice.gamma for choice in controller.choose(world.states())]
        drafting += gammas[0] > 0
        controller.observe(*world.play(gammas), extra_tokens=100)
    assert drafting >= 170


def test_the_report_says_what_was_measured() -> None:
    controller = Controller()
    world = World(linear, [Speaker(0.8, drafting=0.001, asking=0.0005)])
    world.run(controller, 300)
    report = controller.report()
    assert report.rounds == 300
    assert report.base[1] == pytest.approx(B)
    for drafts, seconds in report.step[1]:
        assert seconds == pytest.approx(linear(1, int(drafts)), rel=0.02)
    assert report.drafting["drafter"][1] == pytest.approx(0.001, rel=0.6)
    assert report.rest == pytest.approx(0)
    assert report.accepted["drafter"][4] == pytest.approx(0.8 + 0.64 + 0.512 + 0.4096, rel=0.15)
    assert sum(report.reasons.values()) == 300
    assert report.probes == report.reasons["probe"] > 0
    assert report.gamma_mean > 1


# ---- drafters that size their own blocks ----------------------------------------------------------------------------


@dataclass
class Bushes(World):
    """Rows whose drafter tries ``width`` tokens at each place, down to ``depth``: half a tree keeps less than half.

    One of the tokens of a place stands with chance 0.9.
    """

    width: int = 3
    depth: int = 3
    sizes_itself: bool = True

    def states(self) -> list[RowState]:
        return [replace(state, sizes_itself=self.sizes_itself) for state in super().states()]

    def play(self, gammas: Seq[int]) -> tuple[list[RowOutcome], RoundTimes]:
        outcomes = []
        for key, gamma in enumerate(gammas):
            proposed = min(gamma, self.width * self.depth)
            accepted = 0
            # The likeliest tokens come first: of each place one, then the others of the first place, and so on.
            while accepted < min(proposed, self.depth) and self.random.random() < self.chance(proposed, accepted):
                accepted += 1
            outcomes.append(RowOutcome(key, gamma, proposed, accepted, accepted + 1, Counts()))
        seconds = self.step(len(gammas), sum(o.proposed for o in outcomes))
        return outcomes, RoundTimes(propose=0.0, draft=0.0, forward=seconds, masks=0.0, verify=0.0, total=seconds)

    def chance(self, proposed: int, place: int) -> float:
        others = max(0, min(self.width - 1, (proposed - self.depth) - place * (self.width - 1)))
        return 0.3 + 0.6 * others / (self.width - 1)

    def expected(self, gammas: Seq[int]) -> tuple[float, float]:
        tokens = 0.0
        for gamma in gammas:
            proposed, reached = min(gamma, self.width * self.depth), 1.0
            tokens += 1
            for place in range(min(proposed, self.depth)):
                reached *= self.chance(proposed, place)
                tokens += reached
        return tokens, self.step(len(gammas), sum(min(g, self.width * self.depth) for g in gammas))


def bushes(slope: float, *, rows: int = 1, sizes_itself: bool = True) -> Bushes:
    speakers = [Speaker(0.9) for _ in range(rows)]
    return Bushes(lambda n, drafts: 1 + 0.1 * n + slope * drafts, speakers, sizes_itself=sizes_itself)


def test_a_drafter_that_sizes_itself_gets_all_or_nothing() -> None:
    for slope, pays in ((0.02, True), (1.0, False)):
        world = bushes(slope)
        world.run(Controller(), 400)
        late = [choice.gamma for [choice] in world.history[100:]]
        share = sum(gamma >= 9 for gamma in late) / len(late)
        assert share > 0.9 if pays else share < 0.05
        assert sum(gamma == 0 for gamma in late) / len(late) > 0.9 or pays


def test_the_whole_of_a_tree_is_better_than_what_a_chain_of_so_many_drafts_would_suggest() -> None:
    whole, part = (bushes(0.06, sizes_itself=own) for own in (True, False))
    assert whole.run(Controller(), 600) > part.run(Controller(), 600)


def test_in_a_batch_rows_share_as_those_of_any_drafter() -> None:
    one, other = (bushes(0.02, rows=4, sizes_itself=own) for own in (True, False))
    assert one.run(Controller(), 200) == other.run(Controller(), 200)
    assert one.history == other.history


@pytest.mark.parametrize("pays", [True, False])
def test_blocks_of_two_kinds_are_judged_by_what_whole_ones_brought(pays: bool) -> None:
    """A spell of trees (many cheap drafts, few stand), then one of chains (few dear ones, all stand), and so on: taken
    together they bring 9 tokens in 5.5 steps of time, or where drafts are dearer in 11.5.
    """
    controller = Controller()
    counts = Counts()
    reasons = []
    for number in range(400):
        [choice] = controller.choose([RowState(key=1, limit=24, drafter_name="both", sizes_itself=True)])
        reasons.append(choice.reason)
        tree = number // 8 % 2 == 0
        wanted, stands = (20, 1) if tree else (7, 6)
        proposed = min(choice.gamma, wanted)
        accepted = min(proposed, stands)
        drafting = 0.0 if not proposed else 0.15 * B if tree else (0.45 if pays else 1.3) * B * proposed
        step = linear(1, 0) if not proposed else 1.1 * B
        counts.rounds += 1
        times = RoundTimes(propose=drafting, draft=drafting, forward=step, masks=0.0, verify=0.0, total=step + drafting)
        row = RowOutcome(key=1, gamma=choice.gamma, proposed=proposed, accepted=accepted, committed=accepted + 1,
                         counts=counts)  # fmt: skip
        controller.observe([row], times)
    later = reasons[100:]
    if pays:
        assert later.count("paying") > 0.9 * len(later)
    else:
        assert later.count("paying") < 0.3 * len(later)
