"""What `phalanx ps` lists, and what `phalanx scheduler policy` says."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs import pools
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


def test_the_policy_is_shown_set_and_reset(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "connected", lambda ctx: nullcontext(rig.client))

    def policy(*words: str) -> str:
        done = CliRunner().invoke(app, ["scheduler", "policy", *words], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert "no: the policy of the start is in effect" in policy("show")
    said = policy("set", "fair")
    assert "fair: shorter longest waits" in said and "by user" in said
    found = json.loads(policy("show", "--json"))
    assert (found["policy"], found["source"], found["start"]) == ("fair", "stored", "throughput")
    assert json.loads(policy("reset", "--json"))["policy"] == "throughput"
