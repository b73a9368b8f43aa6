"""What happens before the ranks of a node start, without processes."""

import fcntl
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.core.contract.job import WarmStart
from phalanx.core.reasons import Cause
from phalanx.launch.command import PythonCommand
from phalanx.schemas.wire.assignments import Assignment, ExpectedFacts, ResumePlaces
from phalanx.supervise.packages.plan import EnvironmentPlan
from phalanx.supervise.preparation import Preparation
from phalanx.supervise.ranks.checkpoint_folder import StagedCheckpoint
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit


class Processes:
    """Keeps the commands that are to be started; the test says how they end."""

    def __init__(self):
        self.started, self.num_warm = [], 0

    def start_command(self, command, launch, observer, workdir):
        launch.close()
        self.started.append(observer)

    def start_warm_process(self):
        self.num_warm += 1


class Prelude:
    """The first rank, which lends its output to the program before it."""

    def __init__(self):
        self.closed = 0

    def open_prelude(self):
        return tuple(os.open(os.devnull, os.O_RDWR) for _ in range(3))

    def close_prelude(self):
        self.closed += 1


class Generation:
    ending, number = False, 0

    def __init__(self, folder):
        self.folder, self.ranks = folder / "g000", [Prelude()]
        self.records = SimpleNamespace(phase="")
        self.failures = []

        self.begun = []
        self.checkpoint_folder = SimpleNamespace(begin_from=self.begun.append)

    def fail(self, message, cause, traceback=""):
        self.failures.append((message, cause))


@pytest.fixture
def prepare(tmp_path):
    """Begin the preparation of a generation; returns it, the processes and the calls of `then`."""

    def begin(plan=None, setup=None, data=None, python=None, expects=None, resume=None):
        assignment = Assignment(
            gang=gang_contract(1),
            node_rank=0,
            node_dir=str(tmp_path),
            workdir=str(tmp_path),
            cwd=str(tmp_path),
            command=["x"],
            env={},
            warm=WarmStart(enabled=False, imports=()),
            cpus=1,
            server_url="http://nowhere",
            token="t",
            setup=setup,
            data=data or {},
            data_root=str(tmp_path / "root"),
        )
        generation, processes, calls = Generation(tmp_path), Processes(), []
        python = None if python is None else PythonCommand(python, False, "module", "x", (), "/")
        if expects is not None:
            found = ExpectedFacts(job="j-1", facts=expects)
            assignment = assignment.model_copy(update={"expects": found})
        if resume is not None:
            places = ResumePlaces(places=resume)
            assignment = assignment.model_copy(update={"resume": places})
        reports = []
        context = SimpleNamespace(
            assignment=assignment,
            processes=processes,
            command=python,
            put=lambda make: reports.append(make(1)),
        )
        preparation = Preparation(context, plan or EnvironmentPlan())

        def run(resumes=False):
            preparation.run(generation, lambda: calls.append("ranks"), resumes=resumes)

        run()
        return SimpleNamespace(
            generation=generation, processes=processes, calls=calls, run=run, reports=reports
        )

    return begin


def test_a_builder_that_cannot_start_is_no_mistake_of_the_user(prepare, tmp_path):
    plan = EnvironmentPlan(request={"root": str(tmp_path / "python"), "digest": "d"})
    rig = prepare(plan)
    assert rig.generation.records.phase == "packages"
    rig.processes.started[0].refused("python: not found", missing=True)
    said = "the environment cannot be built: python: not found"
    assert rig.generation.failures == [(said, Cause.START_FAILED)]
    assert (rig.generation.records.phase, rig.generation.ranks[0].closed) == ("", 1)
    assert rig.calls == []


@pytest.mark.parametrize(
    ("missing", "cause"), [(True, Cause.USER_ERROR), (False, Cause.START_FAILED)]
)
def test_a_missing_setup_program_is_a_mistake_of_the_user(prepare, missing, cause):
    rig = prepare(setup="./nothing")
    rig.processes.started[0].refused("./nothing", missing=missing)
    assert rig.generation.failures == [("setup could not be started: ./nothing", cause)]
    assert rig.generation.records.phase == ""


def test_a_setup_that_succeeded_does_not_run_again(prepare):
    rig = prepare(setup="true")
    assert rig.generation.records.phase == "setup"
    rig.processes.started[0].exited(0, 1)
    assert (rig.calls, rig.processes.num_warm) == (["ranks"], 1)
    rig.run()
    assert rig.calls == ["ranks", "ranks"]
    assert len(rig.processes.started) == 1


def staged(tmp_path):
    """What the program leaves behind: the copy, its lock, and the link."""
    (tmp_path / "root" / "f1").mkdir(parents=True)
    (tmp_path / "root" / "f1.lock").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "root" / "f1")


@pytest.mark.leaves("a supervisor keeps its locks until its process ends")
def test_inputs_are_staged_before_setup_and_stay_locked(prepare, tmp_path):
    rig = prepare(setup="true", data={"train": "/far"})
    assert rig.generation.records.phase == "data"
    staged(tmp_path)
    rig.processes.started[0].exited(0, 1)
    assert (rig.generation.records.phase, rig.calls) == ("setup", [])
    with open(tmp_path / "root" / "f1.lock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    rig.processes.started[1].exited(0, 2)
    rig.run()
    assert (rig.calls, len(rig.processes.started)) == (["ranks", "ranks"], 2)


@pytest.mark.parametrize(("code", "cause"), [(102, Cause.USER_ERROR), (1, Cause.START_FAILED)])
def test_a_failed_staging_says_its_last_line(prepare, tmp_path, code, cause):
    rig = prepare(data={"train": "/far"})
    (tmp_path / "staging.log").write_text("data a: staged\ndata train: there is no /far\n")
    rig.processes.started[0].exited(code << 8, 1)
    assert rig.generation.failures == [("data train: there is no /far", cause)]
    assert rig.calls == []


def test_a_copy_that_was_deleted_at_once_is_staged_again_at_the_next_start(prepare, tmp_path):
    rig = prepare(data={"train": "/far"})
    rig.processes.started[0].exited(0, 1)
    assert rig.generation.failures[0][1] is Cause.START_FAILED
    rig.run()
    assert len(rig.processes.started) == 2


def test_the_software_is_reported_before_the_ranks_once_in_an_attempt(prepare):
    rig = prepare(python=sys.executable)
    assert rig.calls == ["ranks"] and rig.processes.started == []
    (report,) = rig.reports
    assert report.kind == "software" and "pydantic" in report.packages
    rig.run()
    assert rig.calls == ["ranks", "ranks"] and len(rig.reports) == 1


def test_another_interpreter_is_asked_and_its_silence_keeps_no_rank_from_starting(
    prepare, tmp_path
):
    rig = prepare(python="/elsewhere/bin/python3")
    assert (rig.generation.records.phase, rig.calls) == ("software", [])
    answer = {"python": "3.13.0", "packages": {"jax": "0.10.0"}}
    (tmp_path / "software.json").write_text(json.dumps(answer))
    rig.processes.started[0].exited(0, 1)
    assert rig.reports[0].packages == {"jax": "0.10.0"} and rig.calls == ["ranks"]
    silent = prepare(python="/elsewhere/bin/python3")
    silent.processes.started[0].refused("not found", missing=True)
    assert silent.calls == ["ranks"] and silent.reports[0].python == ""


def test_what_a_clone_must_find_and_does_not_ends_it_before_its_ranks(prepare):
    rig = prepare(python=sys.executable, expects={"packages.pydantic": "0.1"})
    assert rig.calls == []
    ((said, cause),) = rig.generation.failures
    assert said.startswith("not the same as in j-1, as --require-same demands: ")
    assert cause is Cause.USER_ERROR
    # A restart in the same attempt is refused as well.
    rig.run()
    assert rig.calls == [] and len(rig.generation.failures) == 2


def test_the_checkpoint_to_begin_from_is_staged_once_and_not_for_a_job_with_its_own(
    prepare, tmp_path
):
    rig = prepare(resume=["/c/step-3", "s3://bucket/step-3"])
    assert rig.generation.records.phase == "checkpoint"
    request = json.loads((tmp_path / "resume.json").read_bytes())
    assert request["places"] == ["/c/step-3", "s3://bucket/step-3"]
    staged = {"path": "/c/step-3", "step": 3, "why": "interval"}
    (tmp_path / "resume.json.staged").write_text(json.dumps(staged))
    rig.processes.started[0].exited(0, 1)
    wanted = StagedCheckpoint(Path("/c/step-3"), 3, "interval")
    assert (rig.generation.begun, rig.calls) == ([wanted], ["ranks"])
    rig.run()
    assert rig.generation.begun == [wanted, wanted] and len(rig.processes.started) == 1
    rig.run(resumes=True)
    assert rig.generation.begun == [wanted, wanted] and len(rig.calls) == 3


@pytest.mark.parametrize(("code", "cause"), [(102, Cause.USER_ERROR), (1, Cause.START_FAILED)])
def test_a_checkpoint_that_cannot_be_staged_is_told_in_one_line(prepare, tmp_path, code, cause):
    rig = prepare(resume=["/c/step-3"])
    (tmp_path / "resume.log").write_text("resume_from: /c/step-3: state.bin does not match\n")
    rig.processes.started[0].exited(code << 8, 1)
    said = "resume_from: /c/step-3: state.bin does not match"
    assert rig.generation.failures == [(said, cause)] and rig.calls == []
