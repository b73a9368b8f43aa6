"""Faults of one running job: what dies, what comes back, and that it comes back exact."""

import random
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from e2e.platform.harness import Platform, family, kill, probe_spec, survivors
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
EPOCHS, SAMPLES = 8, 480
FLAGS = (f"--epochs={EPOCHS}", f"--samples={SAMPLES}")


def slow(go: Path, step_s: float) -> tuple[str, str]:
    """Flags of a probe that must not be over before something happens to it; then `go` is touched."""
    return f"--step-s={step_s}", f"--until={go}"


@pytest.fixture(scope="module")
def calm(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an uninterrupted run of `FLAGS` ends with."""
    out = tmp_path_factory.mktemp("calm") / "probe"
    platform.wait_state(platform.submit(probe_spec(out, *FLAGS)), "succeeded")
    return out.read_text()


@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=pytest.mark.proof)])
def test_random_kills_end_bit_identical(platform: Platform, tmp_path: Path, calm: str, kills: int):
    """SIGKILL of a random rank at random moments against an uninterrupted run."""
    hit, go = tmp_path / "hit", tmp_path / "go"
    job = platform.submit(probe_spec(hit, *FLAGS, *slow(go, 0.04)))
    rng = random.Random(20261121)
    seen = 0
    for _ in range(kills):
        # Between two kills at least one new step, so that each hits another place.
        seen += rng.randrange(4, 30)
        platform.wait_steps(seen, hit)
        kill(rng.choice(list(platform.rank_pids(job).values())))
        steps = Path(f"{hit}.steps").read_text().splitlines()
        seen = max(seen, len(steps))
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert view.restarts >= kills - 1  # two kills may hit one generation
    assert hit.read_text() == calm
    lineage = view.lineage
    assert (lineage.missed, lineage.duplicated) == (0, 0)
    assert lineage.consumed == EPOCHS * SAMPLES
    assert lineage.redone > 0


def checkpoint_step(platform: Platform, job: str) -> int:
    return platform.show(job).progress.checkpoint_step or 0


@pytest.mark.extras
def test_kills_that_come_before_the_first_planned_save_do_not_end_the_job(
    platform: Platform, tmp_path: Path, calm: str
):
    """No save is planned at all: from the second failure on, the job saves by itself."""
    hit, go = tmp_path / "hit", tmp_path / "go"
    spec = probe_spec(hit, *FLAGS, *slow(go, 0.04), checkpoint={"every": "100000 steps"})
    job = platform.submit({**spec, "recovery": {}})
    seen = 0
    for _ in range(2):
        platform.wait_steps(seen + 5, hit)
        assert platform.show(job).progress.checkpoint_step is None
        kill(platform.rank_pids(job)[0])
        seen = len(Path(f"{hit}.steps").read_text().splitlines())
    for _ in range(3):
        newest = checkpoint_step(platform, job)
        wait_until(
            lambda newest=newest: checkpoint_step(platform, job) > newest, "another checkpoint"
        )
        kill(platform.rank_pids(job)[0])
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert hit.read_text() == calm
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)


def test_killed_supervisor_leaves_nothing_and_the_job_recovers(platform: Platform, tmp_path: Path):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = platform.submit(probe_spec(out, "--epochs=4", *slow(go, 0.05), "--workers=1"))
    platform.wait_steps(20, out)
    view = platform.show(job)
    supervisor = view.nodes[0].pid
    tree = family(supervisor)
    ranks = set(platform.rank_pids(job).values())
    assert ranks <= {process.pid for process in tree}
    assert len(tree) > len(ranks) + 2  # the data workers are in it too
    kill(supervisor)
    wait_until(lambda: not survivors(tree), "the gang's end")
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert view.attempts == 2
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)


def test_a_lost_node_of_three_is_replaced_and_the_others_stay(platform: Platform, tmp_path: Path):
    """SIGKILL of the supervisor of one node, then of two at once: the third one keeps its process."""
    out, go = tmp_path / "probe", tmp_path / "go"
    spec = probe_spec(out, *FLAGS, *slow(go, 0.1), ranks=1)
    job = platform.submit({**spec, "resources": {"nodes": 3, "slots_per_node": 1}})
    platform.wait_steps(10, out)
    first = {one.node_rank: one.pid for one in platform.show(job).nodes}
    lost = family(first[1])
    kill(first[1])
    wait_until(lambda: not survivors(lost), "the end of the lost node")
    platform.wait_steps(len(Path(f"{out}.steps").read_text().splitlines()) + 10, out)
    second = {one.node_rank: one.pid for one in platform.show(job).nodes}
    assert (second[0], second[2]) == (first[0], first[2])
    assert second[1] not in (None, first[1])
    # Node rank 0 has the rendezvous, and node rank 1 is lost for the second time.
    for rank in (0, 1):
        kill(second[rank])
    platform.wait_steps(len(Path(f"{out}.steps").read_text().splitlines()) + 10, out)
    third = {one.node_rank: one.pid for one in platform.show(job).nodes}
    assert third[2] == first[2] and not {third[0], third[1]} & {*first.values(), *second.values()}
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.lineage.missed, view.lineage.duplicated) == (1, 0, 0)
    assert view.restarts in (2, 3)  # the two may be found dead in two polls
    wait_until(lambda: platform.show(job).lineage.unreported == 0, "the account of the lost ones")
    assert platform.show(job).lineage.consumed == EPOCHS * SAMPLES


@pytest.mark.proof
@pytest.mark.leaves("the platform of the module gets another control plane")
def test_what_a_killed_supervisor_never_reported_is_told_by_the_next(
    platform: Platform, tmp_path: Path
):
    """Both die after a save that the control plane has not heard of; one job's node goes with it."""
    kept, lost = (tmp_path / name for name in ("kept", "lost"))
    go = tmp_path / "go"
    flags = ("--epochs=5", f"--samples={SAMPLES}", *slow(go, 0.25))
    often = {"ranks": 2, "checkpoint": {"every": "4 steps"}}
    jobs = [platform.submit(probe_spec(out, *flags, **often)) for out in (kept, lost)]
    for out in (kept, lost):
        platform.wait_steps(3, out)
    supervisors = [platform.show(job).nodes[0].pid for job in jobs]
    stores = [Path(platform.show(job).checkpoint_dir) for job in jobs]
    kill(platform.server_pid())
    assert platform.process is not None
    platform.process.wait(30)
    known = {one for store in stores for one in store.glob("step-*")}
    for store in stores:
        # The second one from now on lies behind steps of which nobody has heard.
        wait_until(lambda store=store: len(committed(store) - known) >= 2, "two saves")
    trees = [family(pid) for pid in supervisors]
    for tree, pid in zip(trees, supervisors, strict=True):
        kill(pid)
        wait_until(lambda tree=tree: not survivors(tree), "the gang's end")
    shutil.rmtree(platform.home / "jobs" / jobs[1] / "a001" / "n0" / "g000")
    go.touch()
    platform.up()
    for job in jobs:
        assert platform.wait_state(job, "succeeded").attempts == 2
    told = wait_until(
        lambda: (v := platform.show(jobs[0]).lineage).unreported == 0 and v, "the account"
    )
    assert (told.missed, told.duplicated, told.consumed) == (0, 0, 5 * SAMPLES)
    assert told.redone > 0
    view = platform.show(jobs[1]).lineage
    assert (view.missed, view.duplicated) == (0, 0)
    assert view.unreported > 0 and view.unreported + view.consumed == 5 * SAMPLES
    assert f"{view.unreported} unreported" in platform.run("show", jobs[1]).stdout


def committed(store: Path) -> set[Path]:
    return {one.parent for one in store.glob("step-*/MANIFEST.json")}


@pytest.mark.leaves("the platform of the module gets another control plane")
def test_killed_control_plane_leaves_the_job_untouched(platform: Platform, tmp_path: Path):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = platform.submit(probe_spec(out, "--epochs=8", *slow(go, 0.1)))
    platform.wait_steps(5, out)
    before = platform.rank_pids(job)
    kill(platform.server_pid())
    assert platform.process is not None
    platform.process.wait(30)
    done = len(Path(f"{out}.steps").read_text().splitlines())
    platform.wait_steps(done + 5, out)  # nobody is in charge, and it trains on
    platform.up()
    view = platform.wait_state(job, "running")
    assert platform.rank_pids(job) == before
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 0)
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)


@pytest.mark.extras
def test_finished_while_nobody_was_in_charge(platform: Platform, tmp_path: Path):
    out = tmp_path / "probe"
    job = platform.submit(probe_spec(out, "--epochs=4", "--step-s=0.02"))
    platform.wait_steps(5, out)
    kill(platform.server_pid())
    assert platform.process is not None
    platform.process.wait(30)
    wait_until(out.exists, "the script's end")
    platform.up()
    assert platform.wait_state(job, "succeeded").restarts == 0


@pytest.mark.extras
def test_two_pretend_nodes_recover_together(platform: Platform, tmp_path: Path):
    out, go = tmp_path / "probe", tmp_path / "go"
    spec = probe_spec(out, "--epochs=3", *slow(go, 0.1))
    spec["resources"] = {"nodes": 2, "slots_per_node": 2}
    job = platform.submit(spec)
    platform.wait_steps(10, out)
    view = platform.show(job)
    assert len({node.pid for node in view.nodes}) == 2
    assert [rank.node_rank for rank in view.ranks] == [0, 0, 1, 1]
    pids = platform.rank_pids(job)
    kill(pids[3])
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert not [pid for pid in pids.values() if psutil.pid_exists(pid)]


def test_pause_saves_and_resume_goes_on(platform: Platform, tmp_path: Path, calm: str):
    out, go = tmp_path / "probe", tmp_path / "go"
    job = platform.submit(probe_spec(out, *FLAGS, *slow(go, 0.1)))
    platform.wait_steps(15, out)
    platform.run("pause", job)
    view = platform.wait_state(job, "paused")
    assert view.progress.checkpoint_step == len(Path(f"{out}.steps").read_text().splitlines())
    go.touch()
    platform.run("resume", job)
    view = platform.wait_state(job, "succeeded")
    assert view.lineage.redone == 0
    assert out.read_text() == calm


@pytest.mark.extras
def test_a_plain_env_script_recovers_too(platform: Platform, tmp_path: Path):
    """Where torchrun's own restart hangs: a script without our library, one rank killed."""
    mark = tmp_path / "mark"
    job = platform.submit(
        {
            "name": "plain",
            "run": f"python plain_ddp.py {mark}",
            "resources": {"slots_per_node": 3},
        }
    )
    wait_until(lambda: Path(f"{mark}.0").exists(), "the first generation")
    kill(platform.rank_pids(job)[1], signal.SIGKILL)
    view = platform.wait_state(job, "succeeded")
    assert view.restarts == 1
    assert Path(f"{mark}.1").exists()
