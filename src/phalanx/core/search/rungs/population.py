"""Population based training: members that fall behind are replaced by forks of the best.

A fork begins from a checkpoint of a member that is committed and pinned, with changed params, and takes
the place of the member that it replaces.
"""

from __future__ import annotations

import random
from dataclasses import replace

from phalanx.core.search.draft import StudyDraft
from phalanx.core.search.draw import uniform
from phalanx.core.search.expressions import Value
from phalanx.core.search.model import (
    Ask,
    Origin,
    Pin,
    PopulationPolicy,
    SearchCode,
    SearchReason,
    Trial,
    TrialStatus,
)
from phalanx.core.search.rungs.advance import (
    complete,
    may_go_on,
    raise_target,
    stop_for_budget,
)
from phalanx.core.search.rungs.new_trials import new_trial, take_params
from phalanx.core.search.space import ConstantParameter, Parameter, Params

FORK_SAMPLER = "fork"
_S = TrialStatus


def arrive(draft: StudyDraft, trial: Trial) -> None:
    """Compare a member with the others at its interval: it goes on, waits for a place, or is replaced."""
    population = draft.policy.population
    assert population is not None and trial.last is not None
    if trial.rung == len(draft.policy.levels) - 1:
        complete(draft, trial)
        return
    if trial.last.checkpoint is not None and trial.last.checkpoint != trial.pinned:
        draft.command(Pin(trial.number, trial.last.checkpoint))
    parent = _better(draft, population, trial)
    if parent is not None:
        _replace(draft, trial, parent)
    elif trial.status is _S.PAUSED or trial.ending is not None:
        draft.stirred = True
    elif _others_wait(draft, trial):
        draft.pause_trial(trial)
    else:
        go_on(draft, trial)


def go_on(draft: StudyDraft, trial: Trial) -> None:
    """Let a member train to the next interval; one that reached the end while it was paused is complete."""
    if trial.rung == len(draft.policy.levels) - 1:
        complete(draft, trial)
        return
    if not may_go_on(draft, trial):
        stop_for_budget(draft, trial)
        return
    trial = raise_target(draft, trial, "not among the worst of the population")
    if trial.at_rung:
        arrive(draft, trial)


def _better(draft: StudyDraft, population: PopulationPolicy, trial: Trial) -> Trial | None:
    """The member that a trial is replaced by a fork of; None if it is not among the worst."""
    results = draft.index.rungs[trial.bracket, trial.rung].results
    few = int(len(results) * population.quantile)
    score = draft.policy.objective.oriented(trial.results[-1].score)
    if few == 0 or results.rank((score, trial.number)) < len(results) - few:
        return None
    best = [draft.trials[results.at(place)[1]] for place in range(few)]
    usable = [one for one in best if _pinned_rung(one) is not None and one.number != trial.number]
    if not usable:
        return None
    return usable[int(uniform(draft.policy.seed, trial.number, "parent") * len(usable))]


def _pinned_rung(trial: Trial) -> int | None:
    """The rung of a member's pinned checkpoint; None if it has none that can be used."""
    if trial.pinned is None or trial.status in (_S.FAILED, _S.DIVERGED):
        return None
    for offset, result in enumerate(trial.results):
        if result.checkpoint == trial.pinned:
            return trial.first_rung + offset
    return None


def _replace(draft: StudyDraft, trial: Trial, parent: Trial) -> None:
    """Stop a member, and begin a fork of another one in its place."""
    rung = _pinned_rung(parent)
    assert rung is not None and draft.policy.population is not None
    step = parent.results[rung - parent.first_rung].unit
    number = len(draft.trials)
    said = f"by trial {number}, a fork of trial {parent.number} at unit {step}"
    draft.stop_trial(trial, _S.STOPPED, SearchReason(SearchCode.REPLACED, said))
    origin = Origin(FORK_SAMPLER, "1", 0, parent.number, step)
    levels = draft.policy.levels
    first = min(rung + 1, len(levels) - 1)
    fork = replace(
        new_trial(draft, origin),
        first_rung=first,
        rung=first,
        until=levels[first],
        fork_of=parent.pinned,
    )
    fork = draft.add(fork)
    if draft.policy.population.explore == "pb2":
        draft.command(Ask(fork.number))
    else:
        take_params(draft, fork, explored(draft, fork.number, parent.number))


def explored(draft: StudyDraft, number: int, parent: int) -> Params:
    """Params of a parent, changed: each number is multiplied by a factor or drawn anew, by counter."""
    policy, population = draft.policy, draft.policy.population
    assert population is not None
    params = draft.trials[parent].params
    changed: dict[str, Value] = {}
    space = policy.space
    for attempt in range(20):
        values: dict[str, Value] = {}
        for name in space.order:
            one = space.parameters[name]
            draw = random.Random(f"{policy.seed}/{number}/{name}/explore/{attempt}")
            old = params.get(name)
            values[name] = _explored(one, old, population, draw)
        changed = space.active(values)
        if space.allows(changed):
            return changed
    return dict(params)


def _explored(
    one: Parameter, old: Value, population: PopulationPolicy, draw: random.Random
) -> Value:
    if isinstance(one, ConstantParameter):
        return one.value
    chance, factor, anew = draw.random(), draw.choice(population.factors), draw.random()
    if old is None or chance < population.resample:
        return one.value_at(anew)
    if isinstance(old, bool) or not isinstance(old, int | float) or one.kind == "choice":
        return old
    moved = one.value_at(min(max(one.unit_of(old * factor), 0.0), 1.0 - 1e-12))
    return moved if not one.refuses(moved) else old


def _others_wait(draft: StudyDraft, trial: Trial) -> bool:
    """Whether a member behind this one has no place."""
    if draft.free > 0:
        return False
    if draft.index.suggested:
        return True
    return any(
        rung.candidates and key[1] < trial.rung and _has_paused(draft, rung.candidates)
        for key, rung in draft.index.rungs.items()
    )


def _has_paused(draft: StudyDraft, candidates: object) -> bool:
    return any(draft.trials[number].status is _S.PAUSED for _, number in candidates)  # type: ignore[attr-defined]
