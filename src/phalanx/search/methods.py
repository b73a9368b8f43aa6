"""The search methods by name, and `suggest`: one suggestion that is new, allowed and repeatable."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final

from phalanx.core.search.draw import MAX_GRID, Cell, grid_params, qmc_params, random_params
from phalanx.core.search.expressions import Value
from phalanx.core.search.sampling import Exhausted, SampleRequest, Suggestion
from phalanx.core.search.space import Params, Space, cell_of
from phalanx.errors import NotSupported, Problem
from phalanx.kit.text import nearest

#: Functions of plugins: one `SampleRequest` in, params out.
PLUGINS: Final = "phalanx.search_methods"
MAX_REDRAWS: Final = 8
_MAX_RANDOM: Final = 1000
_AUTO_INIT: Final = 10
_AUTO_PARAMETERS: Final = 12
_AUTO_TRIALS: Final = 300
_GP_TRIALS: Final = 500
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "random": frozenset(),
    "grid": frozenset(),
    "qmc": frozenset(),
    "tpe": frozenset({"init_points"}),
    "bayesian": frozenset({"acquisition", "kappa", "init_points"}),
    "auto": frozenset({"acquisition", "kappa", "init_points"}),
    "pbt": frozenset(),
    "pb2": frozenset({"kappa"}),
}
#: The modules that a method needs beyond the standard library; `auto` can do without Optuna.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tpe": ("optuna",),
    "bayesian": ("numpy",),
    "pb2": ("numpy",),
}
Proposer = Callable[[SampleRequest], Suggestion | None]


def suggest(
    request: SampleRequest, propose: Proposer | None = None, seen: Set[Cell] | None = None
) -> Suggestion | Exhausted:
    """The params of the trial that is asked for; equal requests get equal suggestions.

    A suggestion that was tried before is drawn again, at most 8 times with another seed; then follows
    a random one that was not tried. `propose` makes one draw; a `SamplerWorker` gives its own, which
    asks the child process. `seen` are the cells that count as tried; None: those of the observations,
    which may be a selection. Raises NotSupported if the method is unknown or not installed.
    """
    method = chosen_method(request)
    seen = request.known_cells() if seen is None else seen
    if method == "grid":
        return _unseen_cell(request, seen, "grid", "")
    if first := _first_of_others(request, seen):
        return first
    draw = propose if propose and needs_model(method) else propose_here
    reason = ""
    for sub in range(MAX_REDRAWS + 1):
        made = draw(replace(request, method=method, seed=_seed(request.seed, sub)))
        if made is None:
            return Exhausted("no params were found that keep the constraints")
        if faults := request.space.violations(made.params):
            reason = f"{method} suggested params outside of the space: {faults[0]}"
        elif _is_new(request, seen, made.params):
            return replace(made, sub=sub)
        else:
            reason = f"{method} suggested only params that were tried before"
    return unseen(request, seen, reason)


def propose_here(request: SampleRequest) -> Suggestion | None:
    """One draw of the request's method in this process; None if the space allows nothing."""
    if request.method in ("random", "qmc"):
        draw = random_params if request.method == "random" else qmc_params
        params = draw(request.space, request.seed, request.trial)
        return None if params is None else Suggestion(params, request.method)
    if request.method == "tpe":
        from phalanx.search.tpe import suggest_tpe

        return suggest_tpe(request)
    if request.method == "pb2":
        from phalanx.search.pb2 import suggest_pb2

        return suggest_pb2(request)
    if request.method == "bayesian":
        from phalanx.search.bayesian import suggest_bayesian

        return suggest_bayesian(request)
    return Suggestion(dict(_plugins()[request.method](request)), request.method, "plugin")


def chosen_method(request: SampleRequest) -> str:
    """The method that `auto` stands for at this trial, or the one that was asked for.

    `auto` is random below 10 results; then a Gaussian process, or TPE for spaces with conditions or more
    than 12 parameters and after 300 trials. `bayesian` is TPE after 500 trials.
    """
    method = request.method
    if method == "pbt" or (method == "pb2" and request.fork is None):
        return "random"  # first members; forks of `pbt` are changed by the study itself
    if method not in _OPTIONS and method not in _plugins():
        raise NotSupported(_unknown(method))
    if method == "bayesian" and len(request.observations) > _GP_TRIALS and _has("optuna"):
        return "tpe"
    if method == "auto":
        ended = {one.number for one in request.observations if one.is_finite}
        init_points = request.options.get("init_points", _AUTO_INIT)
        if not _has("numpy") or (
            len(ended) < max(float(init_points or 0), 2) and not request.prior
        ):
            return "random"
        space = request.space
        few = len(space.searched) <= _AUTO_PARAMETERS and not space.is_conditional
        if (few and len(request.observations) <= _AUTO_TRIALS) or not _has("optuna"):
            return "bayesian"
        return "tpe"
    if missing := _missing(method):
        raise NotSupported(missing)
    return method


def check(
    method: str, options: Mapping[str, Value], space: Space, max_trials: int | None = None
) -> list[Problem]:
    """Every reason why a study with this method would fail, for the moment of its submission."""
    if method not in _OPTIONS:
        if method in _plugins():
            return []
        return [Problem("search.method", _unknown(method), method)]
    found = [] if not (missing := _missing(method)) else [Problem("search.method", missing)]
    for name, value in options.items():
        if name not in _OPTIONS[method]:
            known = ", ".join(sorted(_OPTIONS[method])) or "none"
            found.append(
                Problem(f"search.{name}", f"{method} has no such option; options: {known}")
            )
        elif fault := _option_fault(name, value):
            found.append(Problem(f"search.{name}", fault, str(value)))
    if method == "grid":
        found += _grid_problems(space, max_trials)
    return found


def describe(method: str, space: Space) -> str:
    """What a method will do, as one sentence for the moment of submission."""
    if method != "auto":
        return f"method {method}"
    few = len(space.searched) <= _AUTO_PARAMETERS and not space.is_conditional
    then = "Bayesian optimisation (GP-UCB), after 300 trials TPE" if few else "TPE"
    return f"method auto: {_AUTO_INIT} random trials, then {then}"


def needs_model(method: str) -> bool:
    """Whether suggestions of a method take long, and belong in a process of their own."""
    return method not in ("random", "grid", "qmc", "pbt")


def _is_new(request: SampleRequest, seen: Set[Cell], params: Params) -> bool:
    return request.duplicates == "allow" or cell_of(params) not in seen


def unseen(request: SampleRequest, seen: Set[Cell], reason: str) -> Suggestion | Exhausted:
    """A random suggestion that was not tried, in place of a model's, with the reason."""
    cells = request.space.num_cells()
    if cells is not None and cells <= MAX_GRID:
        return _unseen_cell(request, seen, "random", reason)
    for sub in range(MAX_REDRAWS + 1, _MAX_RANDOM):
        params = random_params(request.space, request.seed, request.trial, sub)
        if params is None:
            return Exhausted("no params were found that keep the constraints")
        if _is_new(request, seen, params):
            return Suggestion(params, "random", sub=sub, reason=reason)
    return Exhausted("all params that were found had been tried")


def _unseen_cell(
    request: SampleRequest, seen: Set[Cell], sampler: str, reason: str
) -> Suggestion | Exhausted:
    try:
        params = grid_params(request.space, request.seed, request.trial, seen)
    except ValueError as error:
        raise NotSupported(f"this space has no grid: {error}") from None
    if params is None:
        return Exhausted("all combinations were tried")
    return Suggestion(params, sampler, reason=reason)


def _first_of_others(request: SampleRequest, seen: Set[Cell]) -> Suggestion | None:
    """One of the three best trials of the other studies, if it was not tried here."""
    ended = [one for study in request.prior for one in study if one.is_finite]
    for one in sorted(ended, key=lambda one: (one.value or 0.0, one.number))[:3]:
        if not request.space.violations(one.params) and _is_new(request, seen, one.params):
            return Suggestion(dict(one.params), "warm_start", reason="best of another study")
    return None


def _seed(seed: int, sub: int) -> int:
    return seed if sub == 0 else random.Random(f"{seed}/{sub}/redraw").getrandbits(53)


def _option_fault(name: str, value: Value) -> str:
    if name == "acquisition":
        return "" if value in ("ucb", "ei") else "must be `ucb` or `ei`"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
        return "must be a number from 0 to 1000"
    if name == "init_points" and value != int(value):
        return "must be an integer"
    return ""


def _grid_problems(space: Space, max_trials: int | None) -> list[Problem]:
    size = space.num_cells()
    if size is None:
        names = [name for name, one in space.parameters.items() if one.num_levels is None]
        return [Problem(f"space.{name}", "a grid needs `step` or `values` here") for name in names]
    if size > MAX_GRID:
        return [Problem("space", f"{size} combinations; a grid has at most {MAX_GRID}")]
    if max_trials is not None and size > max_trials:
        text = f"{size} combinations, but `trials.max` is {max_trials}; raise it or use `random`"
        return [Problem("space", text)]
    return []


def _unknown(method: str) -> str:
    known = sorted({*_OPTIONS, *_plugins()})
    hint = nearest(method, known)
    return f"unknown method `{method}`; " + (
        f"did you mean `{hint}`?" if hint else f"known: {', '.join(known)}"
    )


def _missing(method: str) -> str:
    lacking = [name for name in _NEEDS.get(method, ()) if not _has(name)]
    if not lacking:
        return ""
    return (
        f"method `{method}` needs {lacking[0]} on the control plane: pip install 'phalanx[search]'"
    )


@cache
def _has(module: str) -> bool:
    return find_spec(module) is not None


@cache
def _plugins() -> dict[str, Callable[[SampleRequest], Params]]:
    return {entry.name: entry.load() for entry in entry_points(group=PLUGINS)}
