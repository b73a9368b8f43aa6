"""Checks of a study at submit, over several keys at once, and what the study is expected to take.

`study_problems` lists what is wrong; `forecast` says how many trials reach each rung and what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.placeholders import placeholder_problems, placeholders
from phalanx.schemas.spec.study import ParameterSection, RungsSection, StudySpec, Value
from phalanx.schemas.spec.support import check_supported

METHODS = ("auto", "grid", "random", "qmc", "tpe", "bayesian", "pbt", "pb2")
POPULATION_METHODS = ("pbt", "pb2")
PLUGINS = "phalanx.search_methods"
"""The group of entry points of methods in other packages."""
_MODELS = ("auto", "tpe", "bayesian", "pb2")
# Methods that have each option of `search`.
_OPTIONS = {
    "init_points": _MODELS,
    "acquisition": ("auto", "bayesian"),
    "kappa": ("auto", "bayesian", "pb2"),
    "warm_start": _MODELS,
}
# Keys of a job spec that would make something else than one job for each trial.
_NOT_IN_TRIALS = ("array", "schedule", "depends_on", "search", "kind")
_MAX_SAMPLES = 200


def plugin_methods() -> list[str]:
    """The names of methods that installed packages add."""
    return sorted({one.name for one in entry_points(group=PLUGINS)})


def study_problems(spec: StudySpec) -> list[Problem]:
    """Everything that is wrong with a study, beside the form of each key; empty when all is well."""
    return [
        *_method(spec),
        *_numbers(spec),
        *_rungs(spec),
        *_population(spec),
        *_starts(spec),
        *_outside(spec),
        *_job(spec),
    ]


def _method(spec: StudySpec) -> Iterator[Problem]:
    search = spec.search
    known = [*METHODS, *plugin_methods()]
    if search.method not in known:
        close = nearest(search.method, known)
        said = f"did you mean {close}?" if close else f"write one of {', '.join(known)}"
        yield Problem("search.method", f"no such method; {said}", repr(search.method))
        return
    builtin = search.method in METHODS
    if search.options and builtin:
        yield Problem("search.options", f"has no effect with {search.method}; remove it")
    for option, methods in _OPTIONS.items():
        if builtin and getattr(search, option) not in (None, []) and search.method not in methods:
            said = f"has no effect with {search.method}, only with {', '.join(methods)}"
            yield Problem(f"search.{option}", said)
    if search.kappa is not None and search.acquisition == "ei":
        yield Problem("search.kappa", "has no effect with `acquisition: ei`; remove it")


def _numbers(spec: StudySpec) -> Iterator[Problem]:
    trials = spec.trials
    if trials.max is None:
        if spec.search.method != "grid":
            yield Problem("trials.max", "is required: the number of trials")
        return
    if trials.parallel > trials.max:
        said = f"is more than `trials.max`, {trials.max}"
        yield Problem("trials.parallel", said, str(trials.parallel))
    if len(spec.start_with) > trials.max:
        said = f"has {len(spec.start_with)} entries, more than `trials.max`, {trials.max}"
        yield Problem("start_with", said)
    if trials.failed.max is not None and trials.failed.max >= trials.max:
        said = f"has no effect: it is not below `trials.max`, {trials.max}"
        yield Problem("trials.failed.max", said, str(trials.failed.max))


def rung_units(rungs: RungsSection) -> tuple[int, ...]:
    """The units of the rungs of the first bracket: min, min × eta, … and max."""
    found, unit = [], rungs.min
    while unit < rungs.max:
        found.append(unit)
        unit *= rungs.eta
    return (*found, rungs.max)


def _rungs(spec: StudySpec) -> Iterator[Problem]:
    rungs = spec.rungs
    if rungs is None:
        return
    if rungs.min > rungs.max:
        yield Problem("rungs.min", f"is above `rungs.max`, {rungs.max}", str(rungs.min))
        return
    levels = rung_units(rungs)
    halving = rungs.rule in ("asha", "hyperband", "pasha")
    if halving and len(levels) < 2:
        said = f"leaves one rung: `rungs.max` must be above `rungs.min`, {rungs.min}"
        yield Problem("rungs.max", said, str(rungs.max))
    if halving and rungs.brackets > len(levels):
        said = f"is more than the {len(levels)} rungs from {rungs.min} to {rungs.max}"
        yield Problem("rungs.brackets", said, str(rungs.brackets))
    if rungs.brackets > 1 and rungs.rule not in ("asha", "hyperband"):
        yield Problem("rungs.brackets", f"has no effect with `rule: {rungs.rule}`; remove it")
    if rungs.type == "promotion" and "type" in rungs.model_fields_set and not halving:
        said = f"`{rungs.rule}` only stops trials; write `type: stop` or remove it"
        yield Problem("rungs.type", said)
    if (rungs.percentile is None) == (rungs.rule == "percentile"):
        is_needed = rungs.rule == "percentile"
        said = (
            "is required with `rule: percentile`"
            if is_needed
            else "has an effect with `rule: percentile` only"
        )
        yield Problem("rungs.percentile", said)
    if rungs.hold != "auto" and (not halving or rungs.type == "stop"):
        yield Problem("rungs.hold", "has an effect with promotion only; remove it")
    for unit in rungs.resources:
        at = f"rungs.resources.{unit}"
        if not halving or rungs.type == "stop":
            yield Problem(at, "has an effect with promotion only; remove it")
        elif unit not in levels[:-1]:
            shown = ", ".join(map(str, levels[:-1]))
            yield Problem(at, f"no trial goes on from there; the rungs below the last are {shown}")


def _population(spec: StudySpec) -> Iterator[Problem]:
    population, method = spec.population, spec.search.method
    if population is None:
        if method in POPULATION_METHODS:
            said = f"is required by the method {method}, as in {{size: 8, every: 1, max: 27}}"
            yield Problem("population", said)
        return
    if method not in POPULATION_METHODS:
        yield Problem("population", f"has no effect with the method {method}; write `method: pbt`")
    if spec.rungs is not None:
        yield Problem("rungs", "do not go together with `population`; remove one")
    if population.every > population.max:
        yield Problem("population.every", f"is above `population.max`, {population.max}")
    low, high = population.factors
    if not low < 1 < high:
        said = "write one factor below 1 and one above, such as [0.8, 1.2]"
        yield Problem("population.factors", said, f"[{low:g}, {high:g}]")
    if spec.trials.max is not None and population.size > spec.trials.max:
        said = f"is more than `trials.max`, {spec.trials.max}"
        yield Problem("population.size", said, str(population.size))


def _starts(spec: StudySpec) -> Iterator[Problem]:
    """Unknown names in `start_with`."""
    for index, params in enumerate(spec.start_with):
        for name in params:
            if name not in spec.space:
                close = nearest(name, list(spec.space))
                said = (
                    f"did you mean {close}?"
                    if close
                    else f"known: {', '.join(list(spec.space)[:20])}"
                )
                yield Problem(f"start_with[{index}].{name}", f"no such parameter; {said}")


def _outside(spec: StudySpec) -> Iterator[Problem]:
    """Keys without an effect in a study without a job."""
    if spec.job is not None:
        return
    said = "has no effect without `job`: trials that are evaluated outside use no slots; remove it"
    if spec.budget.slot_hours is not None:
        yield Problem("budget.slot_hours", said)
    if spec.budget.usd is not None:
        yield Problem("budget.usd", said)
    if spec.final is not None:
        yield Problem("final", said)
    if spec.population is not None:
        yield Problem("population", "needs `job`: its trials continue from checkpoints")


def _job(spec: StudySpec) -> Iterator[Problem]:
    """Placeholders, then the job spec itself with the params of several trials in it."""
    if spec.job is None:
        return
    for key in _NOT_IN_TRIALS:
        if key in spec.job:
            yield Problem(f"job.{key}", "is not possible in the job of a trial; remove it")
            return
    optional = [name for name, one in spec.space.items() if one.when is not None]
    found = placeholder_problems(spec.job, spec.space, optional)
    if found:
        yield from (Problem(f"job.{one.path}", one.message, one.value) for one in found)
        return
    seen = set()
    for params in sample_params(spec):
        for one in _of_trial(spec, params):
            if (one.path, one.message) not in seen:
                seen.add((one.path, one.message))
                yield one
        if seen:
            return


def _of_trial(spec: StudySpec, params: Mapping[str, Value]) -> list[Problem]:
    """What is wrong with the job of a trial with these params."""
    try:
        job = validate_spec(spec.job_for(params), "job")
    except SpecInvalid as error:
        return list(error.problems)
    return [Problem(f"job.{one.path}", one.message, one.value) for one in check_supported(job)]


def sample_params(spec: StudySpec) -> list[dict[str, Value]]:
    """Params that show every value which changes the job spec in more than a text.

    All parameters at their first value, then each parameter that is a whole value of the job spec at its
    bounds and at each of its choices.
    """
    first = {name: _ends(one)[0] for name, one in spec.space.items()}
    found = [first]
    alone = {one.name for one in placeholders(spec.job or {}) if one.alone}
    for name in spec.space:
        if name in alone:
            found += [{**first, name: value} for value in _ends(spec.space[name])[1:]]
    return found[:_MAX_SAMPLES]


def _ends(one: ParameterSection) -> list[Any]:
    if one.kinds == ["value"]:
        return [one.value]
    return list(one.values) if one.values is not None else list(one.bounds)


def trial_job(spec: StudySpec) -> JobSpec | None:
    """The job of a typical trial, for its shape and its limits; None without one. Raises SpecInvalid."""
    return None if spec.job is None else validate_spec(spec.job_for(sample_params(spec)[0]), "job")


# -- what it is expected to take ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RungForecast:
    """One rung: the trials expected to reach `until`, and the units of training between rungs.

    `slot_hours` is an upper limit from the job's `max_duration`; None without one.
    """

    until: int
    trials: int
    units: int
    slot_hours: float | None


@dataclass(frozen=True, slots=True)
class StudyForecast:
    """What a study is expected to take. `share`: its units over those of whole trials."""

    max_trials: int
    parallel: int
    slots_per_trial: int
    rungs: tuple[RungForecast, ...]
    share: float | None
    slot_hours: float | None


def forecast(spec: StudySpec, max_trials: int) -> StudyForecast:
    """The expected trials, units and slot-hours of each rung, for a study without problems.

    One trial of `eta` is expected to go on. Rules other than halving (median, patience) count as if they
    stopped no trial.
    """
    job = trial_job(spec)
    slots = 0 if job is None else sum(plan.shape.num_slots for plan in job.plans)
    limit_s = None if job is None else job.max_duration
    whole = None if limit_s is None else slots * limit_s / 3600
    levels = _levels(spec, max_trials)
    if not levels:
        total = None if whole is None else whole * max_trials
        return StudyForecast(max_trials, spec.trials.parallel, slots, (), None, total)
    last, before, rows = levels[-1][0], 0, []
    for until, trials in levels:
        units = trials * (until - before)
        hours = None if whole is None else whole * units / last
        rows.append(RungForecast(until, trials, units, hours))
        before = until
    units = sum(one.units for one in rows)
    return StudyForecast(
        max_trials=max_trials,
        parallel=spec.trials.parallel,
        slots_per_trial=slots,
        rungs=tuple(rows),
        share=units / (max_trials * last),
        slot_hours=None if whole is None else whole * units / last,
    )


def _levels(spec: StudySpec, max_trials: int) -> list[tuple[int, int]]:
    """The unit of each rung and the trials expected to reach it."""
    if spec.population is not None:
        return [(spec.population.max, max_trials)]
    rungs = spec.rungs
    if rungs is None:
        return []
    units = rung_units(rungs)
    if rungs.rule not in ("asha", "hyperband", "pasha"):
        return [(units[-1], max_trials)]
    reached = dict.fromkeys(units, 0.0)
    for bracket in range(rungs.brackets):
        share = max_trials / rungs.brackets
        for unit in units[bracket:]:
            reached[unit] += max(share, 1.0)
            share /= rungs.eta
        for unit in units[:bracket]:
            reached[unit] += max_trials / rungs.brackets
    return [(unit, max(1, round(count))) for unit, count in reached.items()]
