# ruff: noqa: D102 - the names of the tests say what they promise
"""Contract tests that every search method passes, those of plugins included.

Subclass `SearchMethodContract` and set `method`.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from phalanx.core.search.draw import random_params
from phalanx.core.search.sampling import Exhausted, Observation, SampleRequest, Suggestion
from phalanx.core.search.space import (
    ChoiceParameter,
    ConstantParameter,
    FloatParameter,
    IntParameter,
    Space,
    cell_of,
)
from phalanx.search.methods import suggest

PLAIN = Space(
    {
        "lr": FloatParameter(1e-5, 1e-1, log=True),
        "dropout": FloatParameter(0.0, 0.6, step=0.1),
        "layers": IntParameter(1, 8),
        "width": IntParameter(8, 1024, log=True),
        "kind": ChoiceParameter(("a", 1, True, None)),
        "warmup": ConstantParameter(500),
    }
)
CONDITIONAL = Space(
    {
        "optimizer": ChoiceParameter(("sgd", "adamw")),
        "momentum": FloatParameter(0.5, 0.99, when="optimizer == 'sgd'"),
        "beta": FloatParameter(0.9, 0.999, when="optimizer == 'adamw'"),
        "layers": IntParameter(1, 8),
        "width": IntParameter(8, 1024, log=True),
    },
    ("layers * width <= 2048",),
)
CELLS = Space({"a": IntParameter(1, 4), "b": ChoiceParameter(("x", "y", "z"))})


def trials(space: Space, count: int, running: int = 0, seed: int = 5) -> tuple[Observation, ...]:
    """Trials at random params, the last `running` of them without a result."""
    found = []
    for number in range(count):
        params = random_params(space, seed, number) or {}
        value = math.sin(number * 1.7) + 0.01 * number
        found.append(Observation(number, params, None if number >= count - running else value))
    return tuple(found)


def _asked(request: SampleRequest) -> dict[str, object]:
    made = suggest(request)
    assert isinstance(made, Suggestion)
    assert request.space.violations(made.params) == ()
    return dict(made.params)


class SearchMethodContract:
    """What a study relies on."""

    method = ""
    #: spaces that the method can search
    spaces: tuple[Space, ...] = (PLAIN, CONDITIONAL, CELLS)

    def request(self, space: Space, known: tuple[Observation, ...], seed: int = 3) -> SampleRequest:
        return SampleRequest(space, self.method, {}, seed, len(known), known)

    def test_suggestions_stay_in_the_space(self) -> None:
        for space in self.spaces:
            for seed, count in ((0, 0), (1, 5), (2, 30), (3, 30), (4, 60)):
                if space is not CELLS:
                    _asked(self.request(space, trials(space, count, count // 5), seed))

    def test_equal_requests_get_equal_suggestions(self) -> None:
        for space in self.spaces:
            request = self.request(space, trials(space, 8, 2))
            assert suggest(request) == suggest(request)

    def test_another_process_suggests_the_same(self) -> None:
        request = self.request(self.spaces[0], trials(self.spaces[0], 25, 5))
        code = (
            "from phalanx.testing.search_methods import *\n"
            f"space = {SearchMethodContract.__name__}.spaces and {self.spaces[0]!r}\n"
            f"print(suggest(SampleRequest(space, {self.method!r}, {{}}, 3, 25, trials(space, 25, 5))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.strip() == str(suggest(request))

    def test_a_space_of_cells_is_exhausted_without_repeats(self) -> None:
        if CELLS not in self.spaces:
            pytest.skip("the method searches no such space")
        known: tuple[Observation, ...] = ()
        while isinstance(made := suggest(self.request(CELLS, known)), Suggestion):
            cells = {cell_of(one.params) for one in known}
            assert cell_of(made.params) not in cells
            known += (Observation(len(known), made.params, float(len(known) % 5)),)
        assert isinstance(made, Exhausted)
        assert len(known) == 12

    def test_results_that_are_not_finite_reach_no_model(self) -> None:
        space = self.spaces[0]
        known = trials(space, 24, 2)
        bad = (math.nan, math.inf, -math.inf)
        requests = [
            self.request(space, (*known[:20], replace(known[20], value=one), *known[21:]))
            for one in bad
        ]
        asked = [_asked(one) for one in requests]
        assert asked[0] == asked[1] == asked[2]

    def test_trials_that_all_failed_do_no_harm(self) -> None:
        space = self.spaces[0]
        known = tuple(replace(one, value=math.nan) for one in trials(space, 20))
        _asked(self.request(space, known))
