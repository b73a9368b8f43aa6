"""The study machine under any order of events: late, repeated, lost, with every rule of rungs."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phalanx.core.codec import decode, encode
from phalanx.core.search import events as e
from phalanx.core.search import machine
from phalanx.core.search.draw import random_params
from phalanx.core.search.index import restore
from phalanx.core.search.model import (
    PLACED,
    STUDY_OVER,
    Ask,
    ContinueTo,
    EarlyStopPolicy,
    FailurePolicy,
    FinalPolicy,
    ForkTrial,
    Objective,
    Origin,
    PauseTrial,
    Pin,
    PopulationPolicy,
    ResumeTrial,
    RungPolicy,
    RungResources,
    SearchCode,
    StopTrial,
    Study,
    StudyBudget,
    StudyDecision,
    StudyFacts,
    StudyPolicy,
    SubmitTrial,
    Trial,
    TrialStatus,
    Unpin,
)
from phalanx.core.search.space import ChoiceParameter, FloatParameter, Space
from phalanx.errors import InvalidTransition

pytestmark = pytest.mark.unit

S = TrialStatus
US = 1_000_000
SPACE = Space({"x": FloatParameter(0.0, 1.0), "kind": ChoiceParameter(("a", "b"))})

rungs = st.none() | st.builds(
    RungPolicy,
    rule=st.sampled_from(["asha", "asha", "hyperband", "pasha", "median", "percentile"]),
    type=st.sampled_from(["promotion", "promotion", "stop"]),
    max=st.sampled_from([4, 9]),
    eta=st.sampled_from([2, 3]),
    hold_s=st.sampled_from([None, 0.0, 1.0]),
    min_results=st.just(2),
)
policies = st.builds(
    StudyPolicy,
    space=st.just(SPACE),
    objective=st.builds(
        Objective,
        goal=st.sampled_from(["minimize", "maximize"]),
        at=st.sampled_from(["best", "last"]),
        target=st.none() | st.just(0.01),
    ),
    method=st.sampled_from(["random", "tpe"]),
    start_with=st.sampled_from([(), ({"x": 0.5, "kind": "a"},) * 2]),
    max_trials=st.integers(1, 12),
    parallel=st.integers(1, 4),
    failures=st.sampled_from([FailurePolicy(), FailurePolicy(max=3), FailurePolicy(share=0.4)]),
    rungs=rungs,
    early_stop=st.none() | st.just(EarlyStopPolicy(2, 0.01)),
    budget=st.sampled_from(
        [StudyBudget(), StudyBudget(slot_hours=0.01), StudyBudget(duration_s=90.0)]
    ),
    final=st.none() | st.just(FinalPolicy(2)),
    resources=st.sampled_from([(), (RungResources(4, slots_per_node=2),)]),
)
populations = st.builds(
    lambda policy, parallel, explore: replace(
        policy,
        rungs=None,
        population=PopulationPolicy(6, 2, 8, explore=explore),
        max_trials=None,
        parallel=parallel,
        early_stop=None,
    ),
    policies,
    st.integers(2, 6),
    st.sampled_from(["perturb", "pb2"]),
)


@dataclass
class World:
    """What is outside of the machine: jobs, samplers, pins; it obeys commands in any order."""

    study: Study
    chance: random.Random
    guarded: bool = True
    log: list[tuple[e.StudyEvent, int]] = field(default_factory=list)
    now: int = 0
    units: dict[int, int] = field(default_factory=dict)
    until: dict[int, int | None] = field(default_factory=dict)
    job: dict[int, int] = field(default_factory=dict)
    runs: dict[int, str] = field(default_factory=dict)
    inbox: list[e.StudyEvent] = field(default_factory=list)
    told: list[e.StudyEvent] = field(default_factory=list)
    jobs: int = 0
    pins: set[str] = field(default_factory=set)

    def obey(self, command: object) -> None:
        chance = self.chance
        if isinstance(command, Ask):
            params = random_params(SPACE, 1, command.trial)
            answer: e.StudyEvent = e.Suggested(command.trial, params or {}, Origin("random"))
            if chance.random() < 0.05:
                answer = e.SuggestionFailed(command.trial, "slow", chance.random() < 0.2)
            self.inbox.append(answer)
        elif isinstance(command, SubmitTrial | ForkTrial):
            self.jobs += 1
            number = command.trial
            self.job[number], self.runs[number] = self.jobs, "queued"
            self.until[number] = self.study.trials[number].until
            if command.checkpoint is not None:
                self.units[number] = int(command.checkpoint.rpartition(":")[2])
            self.inbox.append(e.TrialSubmitted(number, self.jobs))
        elif isinstance(command, ResumeTrial):
            self.until[command.trial], self.runs[command.trial] = command.unit, "queued"
        elif isinstance(command, ContinueTo):
            self.until[command.trial] = command.unit
        elif isinstance(command, PauseTrial) and self.runs.get(command.trial) in ("queued", "up"):
            self.runs[command.trial] = "paused"
            saved = f"c:{command.trial}:{self.units.get(command.trial, 0)}"
            self.inbox.append(e.TrialPaused(command.trial, saved, self.used(command.trial)))
        elif isinstance(command, StopTrial) and command.trial in self.runs:
            self.end(command.trial, e.TrialOutcome.STOPPED)
        elif isinstance(command, Unpin):
            self.pins.discard(command.checkpoint)
        elif isinstance(command, Pin):
            self.pins.add(command.checkpoint)
            self.inbox.append(e.CheckpointPinned(command.trial, command.checkpoint))

    def used(self, number: int) -> float:
        return 3.0 * self.units.get(number, 0)

    def end(self, number: int, outcome: e.TrialOutcome) -> None:
        del self.runs[number]
        job = self.job[number]
        self.inbox.append(e.TrialEnded(number, outcome, "", self.used(number), 0.0, job))

    def train(self) -> None:
        """One of the trials does something: it starts, reports, fails or loses its node."""
        number = self.chance.choice(sorted(self.runs))
        until, unit = self.until[number], self.units.get(number, 0)
        if self.runs[number] == "queued":
            self.runs[number] = "up"
            self.inbox.append(e.TrialStarted(number))
        elif self.runs[number] == "up":
            luck = self.chance.random()
            if luck < 0.04:
                outcomes = [one for one in e.TrialOutcome if one is not e.TrialOutcome.SUCCEEDED]
                self.end(number, self.chance.choice(outcomes))
            elif unit >= (until or 6):
                if until is None:
                    self.end(number, e.TrialOutcome.SUCCEEDED)
            else:
                self.units[number] = unit + 1
                value = self.chance.random() + 0.05 if luck < 0.97 else float("nan")
                saved = f"c:{number}:{unit + 1}"
                self.inbox.append(e.TrialReported(number, unit + 1, value, saved))

    def deliver(self) -> None:
        """Deliver the next message; now and then a later one first, or an old one again."""
        if self.told and self.chance.random() < 0.1:
            old = self.chance.choice(self.told)
            # A pin is one transaction with its event, so that event is never told again.
            if not isinstance(old, e.TrialPaused | e.TrialStarted | e.CheckpointPinned):
                self.tell(old)
        if self.inbox:
            at = self.chance.randrange(min(3, len(self.inbox)))
            event = self.inbox[at]
            # Messages of one trial come in order, those of different trials do not.
            same = [one for one in self.inbox if one.__class__ is not e.Suggested]
            event = next((one for one in same if _trial(one) == _trial(event)), event)
            self.inbox.remove(event)
            self.told.append(event)
            self.tell(event)

    def tell(self, event: e.StudyEvent) -> None:
        before = self.study
        frozen = copy.copy(before.index)
        try:
            decision = machine.decide(before, event, self.now)
        except InvalidTransition:
            assert isinstance(event, e.StudySubmitted)
            return
        assert before.index.scores is frozen.scores and before.index.rungs == frozen.rungs
        if decision.ignored is not None:
            assert decision.study is before and not decision.commands
            return
        self.log.append((event, self.now))
        self.take(decision)

    def take(self, decision: StudyDecision) -> None:
        before, self.study = self.study, decision.study
        check(before, decision)
        for command in decision.commands:
            self.obey(command)
        for fork in self.study.trials:
            # Until a fork has a checkpoint of its own, it may have to begin from its parent's again.
            needs = fork.fork_of is not None and fork.pinned is None and not fork.is_over
            assert not needs or fork.fork_of in self.pins
        places = self.study.policy.population
        if places is not None and not self.study.is_over:
            members = [one for one in self.study.trials if not _replaced(one)]
            assert len(members) <= places.size

    def step(self) -> None:
        self.now += self.chance.choice([0, 1, US // 10, US])
        for event in machine.due(self.study, self.now):
            self.tell(event)
        if self.runs and self.chance.random() < 0.5:
            self.train()
        else:
            self.deliver()


def _replaced(trial: Trial) -> bool:
    """Whether a trial has no place in the population: a fork has it, or it never had one."""
    begun = trial.queued_at is not None or not trial.is_over
    counts = trial.status is not S.REJECTED and not trial.is_final and begun
    return not counts or trial.reason.code is SearchCode.REPLACED


def _trial(event: e.StudyEvent) -> int | None:
    return getattr(event, "trial", None)


def check(before: Study, decision: StudyDecision) -> None:
    study, index, policy = decision.study, decision.study.index, decision.study.policy
    placed = [one for one in study.trials if one.status in PLACED and one.evaluator is None]
    # An extension may lower the limit: trials that run stay, none starts.
    assert len(placed) <= max(policy.parallel, len(before.index.placed))
    assert list(index.placed) == [one.number for one in study.trials if one.status in PLACED]
    changed = {one.number for one in decision.changed_trials}
    for trial in study.trials:
        old = before.trials[trial.number] if trial.number < len(before.trials) else None
        assert (trial != old) <= (trial.number in changed)
        if old is not None and old.is_over:
            assert trial.status is old.status, "what is over stays over"
    if policy.max_trials is not None:
        assert index.counted <= policy.max_trials
    if policy.budget.slot_hours is not None and index.reserved_us > before.index.reserved_us:
        assert index.used_us + index.reserved_us <= policy.budget.slot_hours * 3600 * US
    best = study.best
    assert best is None or (best.last is not None and best.status is not S.DIVERGED)
    cells = [
        tuple(sorted(one.params.items())) for one in study.trials if one.params and not one.is_final
    ]
    forks = [one for one in study.trials if one.origin.parent is not None]
    assert forks or len(set(cells)) == len(cells)
    for fork in forks:
        parent = study.trials[fork.origin.parent or 0]
        assert fork.fork_of in {one.checkpoint for one in parent.results}
    assert not study.is_over or all(one.is_over for one in study.trials)
    check_promotions(before, study)


def check_promotions(before: Study, study: Study) -> None:
    """A promoted trial is among the best 1/eta of what is known, or the last chance of the study."""
    policy = study.policy
    if policy.rungs is None or not policy.rungs.pauses:
        return
    for trial in study.trials:
        old = before.trials[trial.number] if trial.number < len(before.trials) else trial
        if trial.rung == old.rung or trial.is_final:
            continue
        rung = study.index.rungs[trial.bracket, old.rung]
        score = trial.results[old.rung - trial.first_rung].score
        rank = rung.results.rank((policy.objective.oriented(score), trial.number))
        among = rank < len(rung.results) // policy.rungs.eta
        assert among or trial.reason.message.endswith("trained to the end") or trial.is_over


def begin(policy: StudyPolicy, seed: int) -> World:
    submitted = e.StudySubmitted(3, policy)
    study = restore(3, policy, StudyFacts(0), ())
    world = World(study, random.Random(seed), log=[(submitted, 0)])
    world.take(machine.create(submitted, 0))
    return world


REQUESTS = [
    e.StudyPaused("lunch"),
    e.StudyResumed(),
    e.StudyStopped(),
    e.StudyStopped("by a user", finish=True),
    e.StudyExtended(max_trials=14),
    e.StudyExtended(parallel=3),
    e.TrialAdded({"x": 0.123, "kind": "b"}),
    e.BudgetSpent(5.0),
    e.StudyDurationExceeded(),
    e.HoldElapsed(1),
]


MEDIAN = StudyPolicy(
    SPACE,
    method="random",
    max_trials=2,
    rungs=RungPolicy(rule="median", max=9, min_results=2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(policies | populations, st.integers(0, 10**6), st.booleans())
@example(MEDIAN, 2190, True)  # the study's pause finds a trial at its last rung
def test_every_study_ends_and_keeps_its_invariants(
    policy: StudyPolicy, seed: int, disturbed: bool
) -> None:
    world = begin(policy, seed)
    for step in range(4000):
        if world.study.is_over and not world.inbox:
            break
        if disturbed and step < 60 and world.chance.random() < 0.05:
            event = world.chance.choice(REQUESTS)
            if not (isinstance(event, e.TrialAdded) and world.study.policy.population):
                known = [one.params for one in world.study.trials]
                if not (isinstance(event, e.TrialAdded) and event.params in known):
                    world.tell(event)
        if disturbed and step == 60:
            world.tell(e.StudyResumed())
        world.step()
    assert world.study.is_over, (world.study.facts, list(world.study.trials)[:12])
    again = machine.rebuild(world.log)
    assert again.facts == world.study.facts and again.trials == world.study.trials
    same_index(again, world.study)
    loaded = restore(3, world.study.policy, world.study.facts, world.study.trials)
    same_index(loaded, world.study)
    stored = decode(Trial, encode(world.study.trials[0]))
    assert stored == world.study.trials[0]
    assert decode(StudyFacts, encode(world.study.facts)) == world.study.facts


outsiders = policies.map(
    lambda policy: replace(
        policy,
        jobs=False,
        final=None,
        resources=(),
        budget=StudyBudget(duration_s=policy.budget.duration_s),
        rungs=None if policy.rungs is None else replace(policy.rungs, type="stop"),
    )
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(outsiders, st.integers(0, 10**6))
def test_a_study_of_outside_evaluators_ends_although_some_are_lost(
    policy: StudyPolicy, seed: int
) -> None:
    """Evaluators ask, report, tell, repeat themselves, and fall silent; no trial is forgotten."""
    world = begin(policy, seed)
    chance = world.chance
    for step in range(4000):
        if world.study.is_over:
            break
        trials = list(world.study.trials)
        live = [one.number for one in trials if one.params and not one.is_over]
        number = chance.choice(live) if live else 0
        unit, luck = chance.randrange(1, 10), chance.random()
        if luck < 0.3 or not trials:
            world.tell(e.TrialAsked("some", 5.0))
        elif luck < 0.5:
            world.tell(e.TrialReported(number, unit, chance.choice([0.5, unit / 7, None])))
        elif luck < 0.6:
            outcome = chance.choice(list(e.TrialOutcome))
            told = e.TrialTold(number, chance.choice([0.3, None, unit / 9]), outcome)
            for _ in range(2):
                world.tell(told)
        elif luck < 0.65 and step < 60:
            event = chance.choice(REQUESTS)
            known = [one.params for one in trials]
            if not (isinstance(event, e.TrialAdded) and event.params in known):
                world.tell(event)
        if step > 60:
            world.tell(e.StudyResumed())
        world.step()
    assert world.study.is_over, (world.study.facts, list(world.study.trials)[:12])
    assert not world.runs, "trials outside have no jobs"
    again = machine.rebuild(world.log)
    assert again.facts == world.study.facts and again.trials == world.study.trials
    same_index(restore(3, world.study.policy, world.study.facts, again.trials), world.study)


def same_index(one: Study, other: Study) -> None:
    empty_aside = {
        key: rung for key, rung in one.index.rungs.items() if rung.results or rung.coming
    }
    there = {key: rung for key, rung in other.index.rungs.items() if rung.results or rung.coming}
    assert empty_aside == there
    for name in type(one.index).__slots__:
        if name != "rungs":
            assert getattr(one.index, name) == getattr(other.index, name), name


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(policies, st.integers(0, 10**6))
def test_negating_metric_and_goal_decides_the_same(policy: StudyPolicy, seed: int) -> None:
    policy = replace(policy, objective=Objective(goal="minimize", at=policy.objective.at))
    mirror = replace(policy, objective=replace(policy.objective, goal="maximize"))
    world = begin(policy, seed)
    while not world.study.is_over:
        world.step()
    study = machine.create(e.StudySubmitted(3, mirror), 0).study
    for event, at in world.log[1:]:
        if isinstance(event, e.TrialReported) and event.value is not None:
            event = replace(event, value=-event.value)
        study = machine.decide(study, event, at).study
    assert [(one.status, one.rung, one.params) for one in study.trials] == [
        (one.status, one.rung, one.params) for one in world.study.trials
    ]


def test_the_table_has_a_cell_for_every_event_and_state() -> None:
    states = [state for column in machine.COLUMNS for state in column]
    assert sorted(states) == sorted(set(states)) and set(states) >= STUDY_OVER
    assert {row[0] for row in machine.ROWS} == set(e.STUDY_EVENT_TYPES)
    assert len(machine.TRANSITIONS) == len(states) * len(e.STUDY_EVENT_TYPES)


GUARDS = {
    "places": "phalanx.core.search.draft.StudyDraft.free",
    "duplicates": "phalanx.core.search.handlers.suggestions.known_params",
    "trials": "phalanx.core.search.rungs.planning._room_for_trials",
    "promotion": "phalanx.core.search.rungs.promotion.promotable",
    "budget": "phalanx.core.search.rungs.planning.affordable",
    "what is over": "phalanx.core.search.model.Trial.is_over",
    "pins": "phalanx.core.search.draft.StudyDraft.unpin",
}
OFF = {
    "places": property(lambda draft: 3),
    "duplicates": lambda draft, params: None,
    "trials": lambda draft: 0 if draft.facts.finals else 5,
    "promotion": lambda rung, eta: [number for _, number in rung.candidates],
    "budget": lambda draft, amount_s: True,
    "what is over": property(lambda trial: False),
    "pins": lambda draft, trial, checkpoint: draft.command(Unpin(trial.number, checkpoint)),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_an_invariant_is_broken(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GUARDS[guard], OFF[guard])
    cells = Space({"x": ChoiceParameter((0.0, 0.5)), "kind": ChoiceParameter(("a", "b"))})
    policy = StudyPolicy(
        cells if guard == "duplicates" else SPACE,
        method="random",
        max_trials=6,
        parallel=2,
        rungs=None if guard in ("budget", "pins") else RungPolicy(max=4, eta=2),
        population=PopulationPolicy(6, 2, 8) if guard == "pins" else None,
        budget=StudyBudget(slot_hours=0.01) if guard == "budget" else StudyBudget(),
    )
    with pytest.raises(AssertionError):
        many_steps(policy, repeats=guard == "duplicates")


def many_steps(policy: StudyPolicy, *, repeats: bool) -> None:
    same = {"x": 0.5, "kind": "a"}
    for seed in range(20):
        world = begin(policy, seed)
        for step in range(400):
            asked = world.study.index.asked.first()
            if repeats and step % 9 == 0 and asked is not None:
                world.tell(e.Suggested(asked, same, Origin("random")))
            world.step()
