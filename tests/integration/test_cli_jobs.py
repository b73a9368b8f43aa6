"""What `phalanx ps` lists."""

from __future__ import annotations

import pytest

from integration.rig import Rig
from phalanx.cli.verbs.jobs import _LIVE, _OVER, _current
from phalanx.core.jobs.model import TERMINAL, JobState

pytestmark = pytest.mark.integration


def test_a_job_that_runs_for_long_is_listed_however_many_came_after_it(rig: Rig) -> None:
    first = rig.submit()
    rig.turn()
    later = [rig.submit() for _ in range(12)]
    for num in later:
        rig.client.stop(num)
    assert [one.num for one in rig.client.jobs(limit=8).jobs if not one.is_terminal] == []
    assert [one.num for one in _current(rig.client, 8)] == [*later[:-6:-1], first]
    assert [one.num for one in _current(rig.client, 1)] == [first]


def test_every_state_is_one_of_the_two() -> None:
    assert {*_LIVE, *_OVER} == set(JobState) and set(_OVER) == TERMINAL
