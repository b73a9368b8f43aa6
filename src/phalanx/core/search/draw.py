"""Draws without a model: random, grid and quasi-random params, as functions of seed and number.

No generator outlives a call: the same seed and number give the same params in any process.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Set
from functools import lru_cache
from typing import Final

from phalanx.core.search.expressions import Value
from phalanx.core.search.space import Space, cell_of

#: Draws that constraints may refuse before the space counts as empty.
MAX_DRAWS: Final = 2000
#: Most combinations that a grid, or the search for one that was not tried, goes through.
MAX_GRID: Final = 100_000
Cell = tuple[tuple[str, bool, Value], ...]


def uniform(seed: int, trial: int, name: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments, and independently so."""
    return random.Random(f"{seed}/{trial}/{name}").random()


def random_params(space: Space, seed: int, trial: int, sub: int = 0) -> dict[str, Value] | None:
    """Params drawn uniformly on each parameter's scale, and again until the constraints hold.

    `sub` counts the draws for one trial. None if MAX_DRAWS draws hold no constraint.
    """

    def unit(name: str, draw: int) -> float:
        return uniform(seed, trial, f"{name}/{sub}/{draw}")

    return _first_allowed(space, unit)


def qmc_params(space: Space, seed: int, index: int) -> dict[str, Value] | None:
    """Point number `index` of a scrambled Halton sequence, which fills the space more evenly.

    Each parameter has a prime base of its own; the digits of the index in that base, in reverse order
    and each permuted by the seed, are its place. A point that constraints refuse is replaced by one far
    behind. None if MAX_DRAWS points hold no constraint.
    """
    bases = dict(zip(space.searched, _primes(), strict=False))

    def unit(name: str, draw: int) -> float:
        if name not in bases:
            return 0.0
        return _halton(index + draw * 1_000_003, bases[name], f"{seed}/{name}")

    return _first_allowed(space, unit)


def grid_params(
    space: Space, seed: int, index: int, seen: Set[Cell] = frozenset()
) -> dict[str, Value] | None:
    """The combination number `index` of a grid in shuffled order, or the next one that is not in `seen`.

    Combinations that differ only in inactive parameters count once; those that break a constraint do
    not count. None if all are in `seen`. Raises ValueError if the space is continuous or has more than
    MAX_GRID combinations; `space.num_cells()` tells.
    """
    cells = _cells(space, seed)
    for offset in range(len(cells)):
        params = params_of_cell(space, cells[(index + offset) % len(cells)])
        if cell_of(params) not in seen:
            return params
    return None


def grid_size(space: Space) -> int:
    """Number of distinct combinations that conditions and constraints leave of a grid.

    Raises ValueError as `grid_params` does.
    """
    return len(_cells(space, 0))


def params_of_cell(space: Space, number: int) -> dict[str, Value]:
    """The active params of combination `number`, read as digits with one base for each parameter."""
    return space.active(
        {name: space.parameters[name].level(level) for name, level in _digits(space, number)}
    )


def _first_allowed(space: Space, unit: Callable[[str, int], float]) -> dict[str, Value] | None:
    for draw in range(MAX_DRAWS if space.constraints else 1):
        params: dict[str, Value] = {}
        for name in space.order:
            if space.is_active(name, params):
                params[name] = space.parameters[name].value_at(unit(name, draw))
        if space.allows(params):
            return params
    return None


def _digits(space: Space, number: int) -> Iterator[tuple[str, int]]:
    for name, one in space.parameters.items():
        levels = one.num_levels
        if levels is None:
            raise ValueError(f"{name} is continuous: a grid needs `step` or `values`")
        number, level = divmod(number, levels)
        yield name, level


@lru_cache(maxsize=4)
def _cells(space: Space, seed: int) -> tuple[int, ...]:
    """The numbers of all distinct allowed combinations, in an order shuffled by the seed."""
    size = space.num_cells()
    if size is None:
        raise ValueError("a grid needs `step` or `values` for every parameter")
    if size > MAX_GRID:
        raise ValueError(f"{size} combinations; a grid has at most {MAX_GRID}")
    cells = [number for number in range(size) if _counts(space, number)]
    random.Random(f"{seed}/grid").shuffle(cells)
    return tuple(cells)


def _counts(space: Space, number: int) -> bool:
    """Whether a combination is allowed, and the first of those that differ in inactive parameters only."""
    if not space.constraints and not space.is_conditional:
        return True
    params = params_of_cell(space, number)
    if any(level for name, level in _digits(space, number) if name not in params):
        return False
    return space.allows(params)


def _halton(index: int, base: int, key: str) -> float:
    """Digit by digit, to the precision of a float; the permutation of each digit is drawn from the key."""
    value, scale = 0.0, 1.0
    for place in itertools.count():
        scale /= base
        if scale < 1e-12:
            break
        index, digit = divmod(index, base)
        value += _permutation(key, base, place)[digit] * scale
    return min(value, math.nextafter(1.0, 0.0))


@lru_cache(maxsize=10_000)
def _permutation(key: str, base: int, place: int) -> tuple[int, ...]:
    digits = list(range(base))
    random.Random(f"{key}/{place}").shuffle(digits)
    return tuple(digits)


@lru_cache(maxsize=1)
def _primes() -> tuple[int, ...]:
    """The first 200 primes, one for each parameter that a space may have."""
    found: list[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            if len(found) == 200:
                return tuple(found)
    raise AssertionError
