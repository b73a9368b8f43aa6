"""Before the first step: wrong versions, ranks taken twice, nodes that do not reach one another."""

import dataclasses
import json

import pytest

from e2e.training.gang import HERE

pytestmark = pytest.mark.e2e


@pytest.fixture
def checked(gang):
    def make(*args, **options):
        job = gang(*map(str, args), every="1000 steps", **options)
        return dataclasses.replace(job, script=HERE / "preflight_job.py")

    return make


def said(job, rank=0):
    return json.loads((job.here() / f"r{rank}.error.json").read_text())["message"]["message"]


def test_a_wrong_version_on_one_rank_ends_it_before_the_first_step(checked):
    job = checked("--odd", 1).start()
    assert job.wait() == [1, 1, 1]
    for rank in range(3):
        line = said(job, rank)
        assert line.startswith("PreflightFailed: rank 1 (") and "\n" not in line
        assert "has torch 2.12.1+cpu, the others 2.13.0" in line
        assert job.records(rank, kind="step") == []


def test_without_the_check_it_trains_to_other_weights_and_nobody_is_told(checked):
    right = checked(name="right").start().finish().result
    job = checked("--odd", 1, "--preflight", "off", name="off").start().finish()
    assert job.result != right
    assert not [one for one in job.records(0, kind="warn") if "torch" in one["message"]]


def test_two_processes_with_one_rank_are_named(checked):
    job = checked()
    taken = job.env
    job.env = lambda rank, port: {**taken(rank, port), "RANK": "1" if rank == 2 else str(rank)}
    job.start()
    assert job.wait() == [1, 1, 1]
    for rank in range(3):
        assert said(job, rank).startswith("PreflightFailed: two processes are rank 1: ")
