"""The local executor keeps the contract, adopts what runs, and hands jobs to a spare."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.contract.job import WarmStart
from phalanx.core.contract.trial import TrialContract
from phalanx.core.jobs.desired import Action
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.local import LocalExecutor
from phalanx.kit.clock import SystemClock
from phalanx.launch import linux
from phalanx.launch.identity import SupervisorRecord
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import NodeReadyReport, Orders, RanksStartedReport
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import ExecutorContract, FakeExecutor, gang_contract, ref_of
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)\n"


def started_pair(rig, job, folder):
    """Two supervisors of one gang, started; `folder` is that of a node rank."""
    gang = gang_contract(job, num_nodes=2, grace_s=5.0)
    made = [
        rig.assignment(job, gang=gang, node_rank=rank, node_dir=str(folder(rank)))
        for rank in range(2)
    ]
    for one in made:
        rig.executor.start(rig.executor.inventory()[0], one)
    return tuple(made)


class LocalRig:
    def __init__(self, root):
        self.home = HomeLayout(root / "home")
        self.home.root.mkdir(mode=0o700)
        self.code = root / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(DAEMON)
        self.plane = FakeControlPlane()
        self.executor = LocalExecutor(self.home, num_slots=4, clock=SystemClock())
        self.refs = []

    def assignment(self, job, **changes):
        gang = gang_contract(job, grace_s=5.0)
        fields = {
            "gang": gang,
            "node_rank": 0,
            "node_dir": str(self.home.node_dir(job, 1, 0)),
            "workdir": str(self.code),
            "cwd": str(self.code),
            "command": ["python", "train.py"],
            "env": {"PATH": PATH},
            "cpus": 1,
            "server_url": self.plane.url,
            "token": self.plane.token,
            "warm": WarmStart(enabled=False),
        }
        made = Assignment(**{**fields, **changes})
        self.refs.append(ref_of(made))
        return made

    def start(self, assignment):
        self.executor.start(self.executor.inventory()[0], assignment)

    def record(self, ref):
        return SupervisorRecord.read(self.home.node_dir(ref.job, ref.attempt, ref.node_rank))

    def kill_supervisor(self, ref):
        os.kill(self.record(ref).supervisor.pid, signal.SIGKILL)

    def pair(self, job):
        return started_pair(self, job, lambda rank: self.home.node_dir(job, 1, rank))

    def num_started(self, ref):
        ready = self.plane.reports(NodeReadyReport)
        log = self.home.node_dir(ref.job, ref.attempt, ref.node_rank) / "supervisor.log"
        assert "rror" not in log.read_text()
        return max(1, len({one.pid for one in ready}))

    def reborn(self):
        return LocalExecutor(self.home, num_slots=4, clock=SystemClock())

    def close(self):
        for ref in self.refs:
            self.executor.stop(ref)
        wait_until(lambda: not any(one.alive for one in self.executor.poll(self.refs)))
        self.executor.close()
        self.plane.away()


class FakeRig:
    def __init__(self):
        self.executor = FakeExecutor()
        self.local = None

    def assignment(self, job, **changes):
        fields = {
            "gang": gang_contract(job, framework="none", grace_s=5.0),
            "node_rank": 0,
            "node_dir": "/nowhere",
            "workdir": "/",
            "cwd": "/",
            "command": "true",
            "env": {},
            "cpus": 1,
            "server_url": "",
            "token": "",
        }
        return Assignment(**{**fields, **changes})

    def kill_supervisor(self, ref):
        self.executor.bury(ref)

    def pair(self, job):
        return started_pair(self, job, lambda rank: f"/nowhere/n{rank}")

    def num_started(self, ref):
        return self.executor.num_starts

    def reborn(self):
        return self.executor


@pytest.fixture
def local(tmp_path):
    rig = LocalRig(tmp_path)
    yield rig
    rig.close()


class TestLocalExecutor(ExecutorContract):
    @pytest.fixture
    def rig(self, local):
        return local


class TestFakeExecutor(ExecutorContract):
    @pytest.fixture
    def rig(self):
        return FakeRig()


def test_the_assignment_is_for_its_owner_only(local):
    assignment = local.assignment(1)
    local.start(assignment)
    path = Path(assignment.node_dir, "assignment.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert Assignment.model_validate_json(path.read_bytes()) == assignment


def test_a_supervisor_that_cannot_start_is_a_failed_launch(local):
    assignment = local.assignment(1)
    Path(assignment.node_dir).parents[1].mkdir(parents=True)
    Path(assignment.node_dir).parent.touch()  # a file where a folder should be
    with pytest.raises(LaunchError, match="Not a directory"):
        local.start(assignment)
    Path(assignment.node_dir).parent.unlink()
    assert not local.executor.poll([ref_of(assignment)])[0].alive


def test_an_unreadable_record_is_not_taken_for_death(local):
    assignment = local.assignment(1)
    local.start(assignment)
    path = Path(assignment.node_dir, "supervisor.json")
    good = path.read_bytes()
    path.write_text("{")
    with pytest.raises(ExecutorUnavailable):
        local.executor.poll([ref_of(assignment)])
    path.write_bytes(good)


def test_death_is_confirmed_only_when_the_ranks_are_gone_too(local):
    assignment = local.assignment(1)
    ref = ref_of(assignment)
    local.start(assignment)
    wait_until(lambda: local.plane.reports(NodeReadyReport))
    local.plane.order(Orders(version="run", action=Action.RUN, master_address="127.0.0.1"))
    wait_until(lambda: local.plane.reports(RanksStartedReport))
    record = local.record(ref)
    wait_until(lambda: len(linux.tagged(record.marker)) == 3)  # reaper, rank, daemon
    # The reaper cannot do its work: everything hangs on the executor's own last line.
    os.kill(record.reaper.pid, signal.SIGSTOP)
    local.kill_supervisor(ref)
    wait_until(lambda: not record.supervisor.is_alive())
    assert local.executor.poll([ref])[0].alive
    local.executor.stop(ref)
    wait_until(lambda: not local.executor.poll([ref])[0].alive)
    assert linux.tagged(record.marker) == []


@pytest.mark.leaves("the first control plane plays one that was killed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_start_cut_between_spawn_and_record_starts_no_second_one(local):
    # Two control planes in turn, the first killed right after it had spawned.
    from phalanx.executors.local.executor import _spawn
    from phalanx.launch.files import write_file

    assignment = local.assignment(1)
    folder = Path(assignment.node_dir)
    folder.mkdir(parents=True, mode=0o700)
    write_file(folder / "assignment.json", assignment.model_dump_json().encode())
    first = _spawn(folder / "assignment.json", folder)
    local.reborn().start(local.executor.inventory()[0], assignment)
    second_alive = [local.record(ref_of(assignment)).supervisor.pid]
    wait_until(lambda: local.plane.reports(NodeReadyReport))
    local.executor.stop(ref_of(assignment))
    wait_until(lambda: not local.executor.poll([ref_of(assignment)])[0].alive)
    first.wait()
    assert {one.pid for one in local.plane.reports(NodeReadyReport)} == set(second_alive)


class TestSpare:
    @pytest.fixture
    def rig(self, tmp_path):
        rig = LocalRig(tmp_path)
        light = tmp_path / "light"
        (light / "torch").mkdir(parents=True)
        (light / "torch" / "__init__.py").touch()
        rig.env = {"PATH": PATH, "PYTHONPATH": str(light)}
        rig.executor = LocalExecutor(rig.home, num_slots=4, clock=SystemClock(), keep_warm=1)
        yield rig
        rig.close()

    def spare_of(self, rig):
        return rig.executor._standby._process

    def first_job(self, rig):
        """Teaches the executor what jobs look like here; the next spare is like it."""
        assignment = rig.assignment(1, env=rig.env, warm=WarmStart())
        rig.start(assignment)
        rig.executor.stop(ref_of(assignment))
        wait_until(lambda: not rig.executor.poll([ref_of(assignment)])[0].alive)
        return wait_until(lambda: self.spare_of(rig))

    def test_a_job_that_suits_gets_the_spare(self, rig):
        spare = self.first_job(rig)
        (Path(rig.env["PYTHONPATH"]) / "more.py").write_text("open(__file__ + '.seen', 'x')\n")
        assignment = rig.assignment(2, env=rig.env, warm=WarmStart(imports=("more",)))
        rig.start(assignment)
        assert rig.record(ref_of(assignment)).supervisor.pid == spare.pid
        port = rig.plane.wait_for(lambda: rig.plane.reports(NodeReadyReport))[0].port
        rig.plane.order(
            Orders(version="run", action=Action.RUN, master_address="x", master_port=port)
        )
        assert rig.plane.wait_for(lambda: rig.plane.reports(RanksStartedReport))[0].warm
        assert Path(rig.env["PYTHONPATH"], "more.py.seen").exists()

    def test_another_environment_does_not_get_it_and_it_leaves(self, rig):
        spare = self.first_job(rig)
        env = {**rig.env, "PYTHONHASHSEED": "5"}
        assignment = rig.assignment(2, env=env, warm=WarmStart())
        rig.start(assignment)
        assert rig.record(ref_of(assignment)).supervisor.pid != spare.pid
        wait_until(lambda: spare.poll() is not None)

    def test_a_job_that_starts_cold_leaves_it_to_the_next_one(self, rig):
        spare = self.first_job(rig)
        cold = rig.assignment(2, env=rig.env)
        assert not cold.warm.enabled
        rig.start(cold)
        assert rig.record(ref_of(cold)).supervisor.pid != spare.pid
        warm = rig.assignment(3, env=rig.env, warm=WarmStart())
        rig.start(warm)
        assert rig.record(ref_of(warm)).supervisor.pid == spare.pid

    def test_it_leaves_with_its_executor(self, rig):
        spare = self.first_job(rig)
        rig.executor.close()
        wait_until(lambda: spare.poll() is not None)


class TestTemplate:
    """Trials of one study are forked from a template of their own."""

    @pytest.fixture
    def rig(self, tmp_path):
        rig = LocalRig(tmp_path)
        light = tmp_path / "light"
        (light / "torch").mkdir(parents=True)
        (light / "torch" / "__init__.py").touch()
        rig.env = {"PATH": PATH, "PYTHONPATH": str(light)}
        yield rig
        rig.close()

    def trial(self, rig, job, study, env=None):
        made = rig.assignment(job, env=env or rig.env, warm=WarmStart())
        made = made.model_copy(
            update={"gang": replace(made.gang, trial=TrialContract(study=study, trial=job))}
        )
        rig.start(made)
        return rig.record(ref_of(made))

    def templates(self, rig):
        return list(rig.executor._templates._templates.values())

    def ready(self, rig, study=1):
        """The template that the first trial of a study left, once it can fork."""
        self.trial(rig, 1, study)
        (template,) = self.templates(rig)
        wait_until(template.is_ready)
        return template

    def test_the_next_trial_of_the_study_is_forked_and_its_ranks_are_warm(self, rig):
        template = self.ready(rig)
        record = self.trial(rig, 2, 1)
        assert linux.entry(record.supervisor.pid).parent == template.process.pid
        port = rig.plane.wait_for(lambda: rig.plane.reports(NodeReadyReport))[-1].port
        rig.plane.order(
            Orders(version="run", action=Action.RUN, master_address="x", master_port=port)
        )
        assert rig.plane.wait_for(
            lambda: [one for one in rig.plane.reports(RanksStartedReport) if one.warm]
        )
        # supervisor, reaper, warm process, rank: each shows the tag of its own supervisor
        wait_until(lambda: len(linux.tagged(record.marker)) >= 4)
        assert record.supervisor.pid in linux.tagged(record.marker)
        assert template.process.pid not in linux.tagged(record.marker)

    def test_other_studies_jobs_and_environments_get_none_of_it(self, rig):
        template = self.ready(rig)
        other = self.trial(rig, 2, study=2)
        changed = self.trial(rig, 3, 1, env={**rig.env, "PYTHONHASHSEED": "5"})
        plain = rig.assignment(4, env=rig.env, warm=WarmStart())
        rig.start(plain)
        for record in (other, changed, rig.record(ref_of(plain))):
            assert linux.entry(record.supervisor.pid).parent != template.process.pid

    def test_a_killed_supervisor_takes_its_warm_process_along(self, rig):
        self.ready(rig)
        record = self.trial(rig, 2, 1)
        ref = rig.refs[-1]
        wait_until(lambda: len(linux.tagged(record.marker)) == 3)
        rig.kill_supervisor(ref)
        wait_until(lambda: not rig.executor.poll([ref])[0].alive)
        assert linux.tagged(record.marker) == []

    def test_supervisors_outlive_their_template(self, rig):
        template = self.ready(rig)
        record = self.trial(rig, 2, 1)
        template.process.kill()
        template.process.wait()
        assert record.supervisor.is_alive()
        # The next trial starts as other jobs do.
        assert self.trial(rig, 3, 1).supervisor.is_alive()

    def test_nothing_stays_of_a_study_without_trials(self, rig):
        template = self.ready(rig)
        rig.executor.stop(rig.refs[0])
        wait_until(lambda: not rig.executor.poll(rig.refs)[0].alive)
        rig.executor._templates._clock = LaterClock()
        rig.executor.poll(rig.refs)
        assert self.templates(rig) == []
        wait_until(lambda: template.process.returncode is not None)

    def test_it_leaves_with_its_executor(self, rig):
        template = self.ready(rig)
        rig.executor.close()
        wait_until(lambda: template.process.returncode is not None)


class LaterClock(SystemClock):
    """An hour later."""

    def monotonic(self):
        return super().monotonic() + 3600
