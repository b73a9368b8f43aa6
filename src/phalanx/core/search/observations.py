"""What a sampler is told about a study: results at one unit, running trials, failures as the worst.

A study of any length is told in at most MAX_OBSERVATIONS trials, because models of more are too slow to
be asked for each trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from phalanx.core.search.model import Rung, Study, Trial, TrialStatus
from phalanx.core.search.sampling import ForkBasis, Observation, SampleRequest

MAX_OBSERVATIONS = 1000
NUM_BEST, NUM_NEWEST = 200, 300
MARGIN = 0.1
"""How much worse than the worst finite value a failed trial counts, as a share of all values' range."""
_S = TrialStatus


def sample_request(study: Study, trial: int) -> SampleRequest:
    """The request for the params of one trial. Trials asked for later are not told."""
    bare = bare_request(study, trial)
    known = observations(study) if bare.fork is None else changes(study)
    return replace(bare, observations=tuple(one for one in known if one.number < trial))


def bare_request(study: Study, trial: int) -> SampleRequest:
    """The request for the params of one trial, without the trials so far."""
    policy, fork = study.policy, None
    # A request for a trial that is not there yet is one for no fork.
    origin = study.trials[trial].origin if trial < len(study.trials) else None
    if origin is not None and origin.parent is not None:
        fork = ForkBasis(dict(study.trials[origin.parent].params), origin.step or 0)
    return SampleRequest(
        space=policy.space,
        method=policy.method,
        options=dict(policy.options),
        seed=policy.seed,
        trial=trial,
        prior=policy.prior,
        duplicates=policy.duplicates if fork is None else "allow",
        fork=fork,
    )


def changes(study: Study) -> tuple[Observation, ...]:
    """How the objective of a population's members has changed for each unit, one for each interval.

    The first interval of a fork begins with its parent's result. An interval in which a member diverged or
    failed has an infinite value; one that is not over has none.
    """
    found: list[Observation] = []
    for trial in study.trials:
        if not trial.params or trial.is_final:
            continue
        before = None
        if trial.origin.parent is not None:
            parent = study.trials[trial.origin.parent]
            before = next((one for one in parent.results if one.unit == trial.origin.step), None)
        for result in trial.results:
            if before is not None:
                change = study.policy.objective.oriented(result.value - before.value)
                each = change / max(result.unit - before.unit, 1)
                found.append(Observation(trial.number, dict(trial.params), each, result.unit))
            before = result
        if not trial.at_rung and (not trial.is_over or trial.status in (_S.FAILED, _S.DIVERGED)):
            value = math.inf if trial.is_over else None
            found.append(Observation(trial.number, dict(trial.params), value, trial.until))
    return tuple(found[-MAX_OBSERVATIONS:])


def observations(study: Study) -> tuple[Observation, ...]:
    """The trials of a study as a sampler learns from them, in the order of their numbers.

    With rungs, values are those at the highest rung that has at least 2 * parameters + 1 results (BOHB,
    Falkner et al. 2018, arXiv 1807.01774), or at the lowest one with any. A trial that failed, diverged or
    was rejected has the worst finite value and a margin; one without a result at the rung has none, so
    that models avoid its params and learn nothing from it.
    """
    rung = learning_rung(study)
    told = [study.trials[number] for number in sorted(set(_chosen(study)))]
    values = {one.number: _value(study, one, rung) for one in told}
    finite = [value for value in values.values() if value is not None]
    worst = None
    if finite:
        low, high = min(finite), max(finite)
        worst = high + MARGIN * ((high - low) or abs(high) or 1.0)
    unit = None if rung is None else study.policy.levels[rung]
    found = []
    for one in told:
        value = values[one.number]
        if value is None and one.status in (_S.FAILED, _S.DIVERGED, _S.REJECTED):
            # Without a finite value to compare with, it counts as one without a result.
            value = math.inf if worst is None else worst
        found.append(Observation(one.number, dict(one.params), value, unit))
    return tuple(found)


def learning_rung(study: Study) -> int | None:
    """The rung that samplers learn from, as an index of `levels`; None in a study without rungs."""
    if study.policy.rungs is None:
        return None
    needed = 2 * len(study.policy.space.searched) + 1
    sizes = [0] * len(study.policy.levels)
    for (_, rung), there in study.index.rungs.items():
        sizes[rung] += _num_finite(there)
    enough = [rung for rung, size in enumerate(sizes) if size >= needed]
    some = [rung for rung, size in enumerate(sizes) if size]
    return max(enough, default=min(some, default=0))


def _num_finite(rung: Rung) -> int:
    return rung.results.rank((math.inf, -1))


def _value(study: Study, trial: Trial, rung: int | None) -> float | None:
    """The oriented value of a trial; None if it has none there."""
    if trial.status in (_S.FAILED, _S.DIVERGED, _S.REJECTED):
        return None
    objective = study.policy.objective
    if rung is None:
        score = trial.score if trial.is_over else None
        return None if score is None else objective.oriented(score)
    offset = rung - trial.first_rung
    if 0 <= offset < len(trial.results):
        return objective.oriented(trial.results[offset].score)
    return None


def _chosen(study: Study) -> Iterator[int]:
    """The numbers of the trials that are told."""
    count = len(study.trials)
    if count <= MAX_OBSERVATIONS:
        yield from _told(study, range(count))
        return
    yield from (number for _, number in _first(study.index.scores, NUM_BEST))
    yield from _told(study, range(count - NUM_NEWEST, count))
    yield from _told(study, study.index.placed)
    rest = MAX_OBSERVATIONS - NUM_BEST - NUM_NEWEST - len(study.index.placed)
    older = count - NUM_NEWEST
    if rest > 0:
        yield from _told(study, (older * place // rest for place in range(rest)))


def _told(study: Study, numbers: Iterable[int]) -> Iterator[int]:
    """Those that have params and belong to the search; what infrastructure ended tells nothing."""
    for number in numbers:
        trial = study.trials[number]
        begun = not trial.is_over or trial.queued_at is not None
        if trial.params and not trial.is_final and begun:
            yield number


def _first(items: Iterable[tuple[float, int]], count: int) -> Iterator[tuple[float, int]]:
    for place, item in enumerate(items):
        if place >= count:
            return
        yield item
