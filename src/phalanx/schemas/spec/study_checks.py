"""Checks of a study at submit, over several keys at once, and what the study is expected to take.

`study_problems` lists what is wrong; `forecast` says how many trials reach each rung and what they cost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from phalanx.core.search.draw import MAX_GRID, grid_size
from phalanx.core.search.space import Space
from phalanx.core.telemetry.line_patterns import LinePattern, names_metric
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.placeholders import placeholder_problems, placeholders
from phalanx.schemas.spec.study import (
    ParameterSection,
    RungsSection,
    StudySpec,
    Value,
    space_values,
)
from phalanx.schemas.spec.support import check_supported

METHODS = ("auto", "grid", "random", "qmc", "tpe", "bayesian", "pbt", "pb2")
POPULATION_METHODS = ("pbt", "pb2")
PLUGINS = "phalanx.search_methods"
"""The group of entry points of methods in other packages."""
_MODELS = ("auto", "tpe", "bayesian")
# Methods that have each option of `search`.
_OPTIONS = {
    "init_points": _MODELS,
    "acquisition": ("auto", "bayesian"),
    "kappa": ("auto", "bayesian", "pb2"),
    "warm_start": _MODELS,
}
# Keys of a job spec that would make something else than one job for each trial.
_NOT_IN_TRIALS = ("array", "schedule", "depends_on", "search", "kind")
_HALVING = ("asha", "hyperband", "pasha")
_MAX_SAMPLES = 200
_MAX_RUNGS = 1000


def plugin_methods() -> list[str]:
    """The names of methods that installed packages add."""
    return sorted({one.name for one in entry_points(group=PLUGINS)})


def study_problems(spec: StudySpec) -> list[Problem]:
    """Everything that is wrong with a study, beside the form of each key; empty when all is well."""
    space = spec.to_space()
    found = space.problems()
    if not found:
        found += [*_grid(spec, space), *_starts(spec, space)]
    return [
        *found,
        *_method(spec),
        *_numbers(spec),
        *_rungs(spec),
        *_population(spec),
        *_outside(spec),
        *_unable_to_pause(spec),
        *_job(spec),
    ]


def prints_objective(spec: StudySpec) -> bool:
    """Whether the objective is read from the output of trials, by the patterns of `job.metrics`."""
    return names_metric(_patterns(spec), spec.objective.metric)


def _patterns(spec: StudySpec) -> list[LinePattern]:
    """The patterns of `job.metrics`; those that are no patterns are problems of the job itself."""
    given = (spec.job or {}).get("metrics", [])
    found: list[LinePattern] = []
    for text in given if isinstance(given, list) else [given]:
        with contextlib.suppress(ValueError):
            found += [LinePattern.parse(text)] if isinstance(text, str) else []
    return found


def _unable_to_pause(spec: StudySpec) -> Iterator[Problem]:
    """What trials cannot do that do not save and pause at a rung: those that print, and those of JAX."""
    printed = prints_objective(spec)
    if printed:
        why = "trials that print their objective cannot pause; call `run.report` instead"
    elif (spec.job or {}).get("framework") == "jax":
        why = "trials of JAX cannot pause at a rung"
    else:
        return
    if spec.population is not None:
        yield Problem("population", why)
    if spec.rungs is None:
        return
    if spec.rungs.rule in _HALVING and spec.rungs.type == "promotion":
        said = f"{why}, or write `type: stop`" if printed else f"{why}; write `type: stop`"
        yield Problem("rungs.type", said, spec.rungs.type)
    unit = spec.rungs.unit
    if printed and unit != "step" and not names_metric(_patterns(spec), unit):
        yield Problem("job.metrics", f"names no {{{unit}}}, which `rungs.unit` counts")


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
    trials, budget = spec.trials, spec.budget
    if spec.population is not None:
        size = spec.population.size
        if trials.max not in (None, size):
            said = f"is `population.size`, {size}, here: write that, or leave it out"
            yield Problem("trials.max", said, str(trials.max))
        if len(spec.start_with) > size:
            said = f"has {len(spec.start_with)} entries, more than `population.size`, {size}"
            yield Problem("start_with", said)
        return
    if trials.max is None:
        limited = any(one is not None for one in (budget.slot_hours, budget.usd, budget.duration))
        if spec.search.method != "grid" and not limited:
            said = "is required: the number of trials; or write a `budget`"
            yield Problem("trials.max", said)
        return
    if trials.parallel is not None and trials.parallel > trials.max:
        said = f"is more than `trials.max`, {trials.max}"
        yield Problem("trials.parallel", said, str(trials.parallel))
    if len(spec.start_with) > trials.max:
        said = f"has {len(spec.start_with)} entries, more than `trials.max`, {trials.max}"
        yield Problem("start_with", said)
    if trials.failed.max is not None and trials.failed.max >= trials.max:
        said = f"has no effect: it is not below `trials.max`, {trials.max}"
        yield Problem("trials.failed.max", said, str(trials.failed.max))


def _grid(spec: StudySpec, space: Space) -> Iterator[Problem]:
    """A grid that does not end, or has more cells than trials."""
    if spec.search.method != "grid":
        return
    endless = [name for name, one in space.parameters.items() if one.num_levels is None]
    for name in endless:
        yield Problem(f"space.{name}", "has no end in a grid; write `values`, or add a `step`")
    if endless:
        return
    cells = space.num_cells() or 0
    if cells > MAX_GRID:
        said = f"has {cells} cells; a grid has at most {MAX_GRID}: write `method: random`"
        yield Problem("space", said)
        return
    cells, most = grid_size(space), spec.trials.max
    if cells == 0:
        yield Problem("constraints", "leave no cell of the grid")
    if most is not None and cells > most:
        said = f"the grid has {cells} cells; write `max: {cells}`, or `method: random`"
        yield Problem("trials.max", said, str(most))


def _rungs(spec: StudySpec) -> Iterator[Problem]:
    rungs = spec.rungs
    if rungs is None:
        return
    if rungs.min > rungs.max:
        yield Problem("rungs.min", f"is above `rungs.max`, {rungs.max}", str(rungs.min))
        return
    if rungs.interval is not None and (rungs.max - rungs.min) // rungs.interval >= _MAX_RUNGS:
        said = f"makes more than {_MAX_RUNGS} rungs up to {rungs.max}; write a larger one"
        yield Problem("rungs.interval", said, str(rungs.interval))
        return
    levels = rungs.to_core().levels
    if rungs.rule in _HALVING:
        yield from _halving(rungs, levels)
    else:
        yield from _comparing(rungs)
    promotes = rungs.rule in _HALVING and rungs.type == "promotion"
    if rungs.hold != "auto" and not promotes:
        yield Problem("rungs.hold", "has an effect with promotion only; remove it")
    for unit in rungs.resources:
        at = f"rungs.resources.{unit}"
        if not promotes:
            yield Problem(at, "has an effect with promotion only; remove it")
        elif unit not in levels[1:]:
            shown = ", ".join(map(str, levels[1:][:20]))
            yield Problem(at, f"is no rung that trials are promoted to; these are {shown}")


def _halving(rungs: RungsSection, levels: Sequence[int]) -> Iterator[Problem]:
    """Faults of the rules by which one trial of `eta` goes on."""
    if len(levels) < 2:
        said = f"leaves one rung: `rungs.max` must be above `rungs.min`, {rungs.min}"
        yield Problem("rungs.max", said, str(rungs.max))
    if rungs.brackets > len(levels):
        said = f"is more than the {len(levels)} rungs from {rungs.min} to {rungs.max}"
        yield Problem("rungs.brackets", said, str(rungs.brackets))
    if rungs.brackets > 1 and rungs.rule != "asha":
        said = "has no effect: Hyperband has a bracket for each rung, PASHA has one"
        yield Problem("rungs.brackets", said)
    for key in ("percentile", "min_results"):
        if getattr(rungs, key) is not None:
            said = "has an effect with the rules median and percentile only; remove it"
            yield Problem(f"rungs.{key}", said)


def _comparing(rungs: RungsSection) -> Iterator[Problem]:
    """Faults of the rules that stop a trial by comparison with all others."""
    if rungs.type == "promotion" and "type" in rungs.model_fields_set:
        said = f"`{rungs.rule}` only stops trials; write `type: stop` or remove it"
        yield Problem("rungs.type", said)
    if rungs.brackets > 1:
        yield Problem("rungs.brackets", f"has no effect with `rule: {rungs.rule}`; remove it")
    if rungs.percentile is None and rungs.rule == "percentile":
        yield Problem("rungs.percentile", "is required with `rule: percentile`")
    if rungs.percentile is not None and rungs.rule == "median":
        said = "has no effect with `rule: median`, which is 50; write `rule: percentile`"
        yield Problem("rungs.percentile", said)


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
    if population.max // population.every > _MAX_RUNGS:
        said = (
            f"makes more than {_MAX_RUNGS} comparisons up to {population.max}; write a larger one"
        )
        yield Problem("population.every", said, str(population.every))
    job = spec.job or {}
    nodes = (job.get("resources") or {}).get("nodes", 1)
    if isinstance(nodes, int) and nodes > 1 and (job.get("checkpoint") or {}).get("store"):
        said = (
            "a member with several nodes commits in the store alone if these share no folder, and forks"
            " need a folder: leave it out and have the nodes share one, or write `nodes: 1`"
        )
        yield Problem("job.checkpoint.store", said)


def _starts(spec: StudySpec, space: Space) -> Iterator[Problem]:
    """Unknown names and impossible values in `start_with`."""
    for index, given in enumerate(spec.start_with):
        values, fits = space_values(given, space), True
        for name, value in values.items():
            if name in space.parameters:
                refused = space.parameters[name].refuses(value)
                if refused:
                    fits = False
                    yield Problem(f"start_with[{index}].{name}", refused, repr(value))
            else:
                fits = False
                close = nearest(name, list(spec.space))
                said = (
                    f"did you mean {close}?"
                    if close
                    else f"known: {', '.join(list(spec.space)[:20])}"
                )
                yield Problem(f"start_with[{index}].{name}", f"no such parameter; {said}")
        if fits and spec.first_params(index) is None:
            said = "no trial can have these params: a condition or a constraint excludes them"
            yield Problem(f"start_with[{index}]", said)


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
    if spec.rungs is not None and spec.rungs.rule in _HALVING and spec.rungs.type == "promotion":
        said = "an outside evaluator cannot pause a trial; write `type: stop`"
        yield Problem("rungs.type", said, spec.rungs.type)
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
    problems = [Problem(f"job.{one.path}", one.message, one.value) for one in check_supported(job)]
    if job.budget is not None:
        problems.append(
            Problem("job.budget", "trials have none of their own: write the study's `budget`")
        )
    return problems


def sample_params(spec: StudySpec) -> list[dict[str, Value]]:
    """Params that show every value which changes the job spec in more than a text.

    All parameters at their first value, then each parameter that is a whole value of the job spec at its
    bounds and at each of its choices.
    """
    first = {name: end_values(one)[0] for name, one in spec.space.items()}
    found = [first]
    alone = {one.name for one in placeholders(spec.job or {}) if one.alone}
    for name in spec.space:
        if name in alone:
            found += [{**first, name: value} for value in end_values(spec.space[name])[1:]]
    return found[:_MAX_SAMPLES]


def end_values(one: ParameterSection) -> list[Any]:
    """The bounds of a parameter, or all of its values."""
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
        return StudyForecast(max_trials, spec.num_parallel, slots, (), None, total)
    last, before, rows = levels[-1][0], 0, []
    for until, trials in levels:
        units = trials * (until - before)
        hours = None if whole is None else whole * units / last
        rows.append(RungForecast(until, trials, units, hours))
        before = until
    units = sum(one.units for one in rows)
    return StudyForecast(
        max_trials=max_trials,
        parallel=spec.num_parallel,
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
    units = rungs.to_core().levels
    if rungs.rule not in _HALVING:
        return [(units[-1], max_trials)]
    reached = dict.fromkeys(units, 0.0)
    brackets = len(units) if rungs.rule == "hyperband" else rungs.brackets
    for bracket in range(brackets):
        share = max_trials / brackets
        for unit in units[bracket:]:
            reached[unit] += max(share, 1.0)
            share /= rungs.eta
        for unit in units[:bracket]:
            reached[unit] += max_trials / brackets
    return [(unit, max(1, round(count))) for unit, count in reached.items()]
