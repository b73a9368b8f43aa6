"""Gangs with several roles on pretended nodes of different shapes: one start, one fate, one eviction."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.harness import Platform, family, kill, probe_spec, survivors
from e2e.platform.test_scheduling import hand_in
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
KEEP_WARM = 0
POOLS = {
    "schema": 1,
    "pools": [
        {
            "name": "mixed",
            "nodes": [
                {"name": "wide", "slots": 2, "cpus": 4},
                {"name": "thin", "count": 2, "slots": 1, "cpus": 4},
            ],
        }
    ],
}
# Each rank says who it is, then waits for the word to go; a server never ends by itself.
SAY = 'echo "$PHALANX_ROLE $RANK/$WORLD_SIZE $PHALANX_GANG_RANK/$PHALANX_GANG_SIZE"; '


@pytest.fixture(scope="module", autouse=True)
def _pools(platform: Platform) -> None:
    path = platform.root / "mixed.yaml"
    path.write_text(yaml.safe_dump(POOLS))
    platform.run("pools", "apply", "-f", path)


def roles(go: Path, **server: Any) -> dict[str, Any]:
    wait = f"until [ -e {go} ]; do sleep 0.02; done"
    serve = (
        f'trap "echo bye; exit 0" TERM; {SAY} echo "$PHALANX_ROLES"; while :; do sleep 0.02; done'
    )
    return {
        "framework": "none",
        "pool": ["mixed"],
        "grace": "20s",
        "roles": {
            "learner": {"run": SAY + wait, "slots": 2},
            "actor": {"run": SAY + wait, "nodes": 2, "slots": 1},
            "server": {"run": serve, "slots": 0, "cpus": 1, "required": False, **server},
        },
    }


def pids(platform: Platform, job: str) -> dict[str, list[int]]:
    platform.rank_pids(job)
    found: dict[str, list[int]] = {}
    for rank in platform.show(job).ranks:
        found.setdefault(rank.role, []).append(rank.pid or 0)
    return found


def lines(platform: Platform, job: str, *args: str) -> list[str]:
    return platform.run("logs", job, *args).stdout.splitlines()


@pytest.mark.extras
def test_roles_of_different_shapes_start_together_and_end_together(
    platform: Platform, tmp_path: Path
):
    job = hand_in(platform, **roles(tmp_path / "go"))
    view = platform.wait_state(job, "running")
    where = {(rank.role, rank.node) for rank in view.ranks}
    assert {("learner", "wide"), ("actor", "thin-0"), ("actor", "thin-1")} < where
    with platform.client() as client:
        wait_until(lambda: len(client.logs(view.num).lines) == 6, "all to speak")
    said = sorted(lines(platform, job, "--role", "actor"))
    assert said == ["[actor 0] actor 0/2 2/5", "[actor 1] actor 1/2 3/5"]
    assert lines(platform, job, "--role", "actor", "--rank", "1") == ["actor 1/2 3/5"]
    said, peers = lines(platform, job, "--role", "server", "--rank", "0")
    assert said == "server 0/1 4/5"
    assert set(json.loads(peers)) == {"learner", "actor", "server"}
    assert "actor: 2 × 1 slots, ranks 2-3; up" in platform.run("show", job).stdout
    assert "thin-1" in platform.run("show", job, "--role", "actor").stdout
    wrong = platform.run("logs", job, "--role", "judge", check=False)
    assert (wrong.returncode, "the roles are learner, actor, server" in wrong.stderr) == (1, True)
    (tmp_path / "go").touch()
    view = platform.wait_state(job, "succeeded")
    assert view.restarts == 0
    assert lines(platform, job, "--role", "server", "--rank", "0")[-1] == "bye"


def test_who_is_required_takes_all_along_and_who_is_not_goes_alone(
    platform: Platform, tmp_path: Path
):
    job = hand_in(platform, **roles(tmp_path / "go"))
    num = platform.wait_state(job, "running").num
    first = pids(platform, job)
    kill(first["server"][0], signal.SIGKILL)
    with platform.client() as client:
        wait_until(lambda: any(one.kind == "warned" for one in client.history(num)), "the warning")
    assert "the job continues without the role" in platform.run("show", job).stdout
    assert (platform.show(job).state, platform.show(job).restarts) == ("running", 0)
    everyone = [one for pid in (*first["learner"], *first["actor"]) for one in family(pid)]
    kill(first["actor"][1], signal.SIGKILL)
    view = wait_until(lambda: (v := platform.show(job)).generation == 1 and v, "another generation")
    assert (view.restarts, view.failure.role) == (1, "actor 1")
    platform.wait_state(job, "running")
    second = pids(platform, job)
    # The server is there again, with the generation, and nobody of the one before is left.
    assert len(second["server"]) == 1
    assert survivors(everyone) == []
    (tmp_path / "go").touch()
    assert platform.wait_state(job, "succeeded").restarts == 1


@pytest.mark.extras
def test_the_whole_gang_is_pushed_aside_and_comes_back(platform: Platform, tmp_path: Path):
    job = hand_in(platform, **roles(tmp_path / "go"), priority="low")
    platform.wait_state(job, "running")
    before = [one for held in pids(platform, job).values() for pid in held for one in family(pid)]
    until = f"until [ -e {tmp_path / 'past'} ]; do sleep 0.02; done"
    high = hand_in(
        platform,
        framework="none",
        run=until,
        pool=["mixed"],
        priority="high",
        resources={"nodes": 2, "slots_per_node": 1},
    )
    # Two of four slots are wanted, both held by the gang: all of it leaves, for it is one.
    platform.wait_state(high, "running")
    assert survivors(before) == []
    assert (platform.show(job).state, platform.show(job).attempts) == ("queued", 1)
    assert "1 × 2 + 2 × 1 (actor) + 1 × 0 with 1 CPUs (server)" in platform.run("why", job).stdout
    (tmp_path / "past").touch()
    assert platform.wait_state(job, "running", "succeeded").attempts == 2
    (tmp_path / "go").touch()
    platform.wait_state(job, "succeeded")


def one_world(out: Path, *flags: str, **spec: Any) -> dict[str, Any]:
    """The exactness probe as one world of four ranks: two on the wide node, one on each thin one."""
    made = probe_spec(out, *flags, pool=["mixed"], **spec)
    # Matrix products of several threads round in an order of their own in each run.
    made["env"]["OMP_NUM_THREADS"] = "1"
    run = made.pop("run")
    del made["resources"]
    worker = {"run": run, "world": "shared", "nodes": 2, "slots": 1, "env": {"PART": "worker"}}
    return {**made, "roles": {"master": {"run": run, "slots": 2}, "worker": worker}}


def test_one_world_over_unequal_nodes_has_one_fate(platform: Platform, tmp_path: Path):
    """Placement and restarts of a shared world; that it recovers exactly is an extra."""
    go = tmp_path / "go"
    run = f'echo "$RANK/$WORLD_SIZE"; until [ -e {go} ]; do sleep 0.02; done'
    worker = {"run": run, "world": "shared", "nodes": 2, "slots": 1}
    job = hand_in(
        platform,
        framework="none",
        pool=["mixed"],
        recovery={"rank_crash": {"count": 20, "per": "1h"}},
        roles={"master": {"run": run, "slots": 2}, "worker": worker},
    )
    view = platform.wait_state(job, "running")
    assert [(rank.role, rank.node) for rank in view.ranks[:2]] == [("master", "wide")] * 2
    assert {rank.node for rank in view.ranks[2:]} == {"thin-0", "thin-1"}
    assert [(one.world, one.world_size) for one in view.roles] == [("master", 4)] * 2
    for generation, victim in ((1, 3), (2, 1)):  # a rank of the worker, then one of the master
        pids = platform.rank_pids(job)
        gang = [one for pid in pids.values() for one in family(pid)]
        kill(pids[victim])
        wait_until(lambda number=generation: platform.show(job).generation == number, "a restart")
        platform.wait_state(job, "running")
        assert survivors(gang) == []
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.restarts, view.attempts) == (2, 1)
    assert set(lines(platform, job, "--role", "worker", "--rank", "3")) == {"3/4"}
    shown = platform.run("show", job).stdout
    assert "worker: 2 × 1 slots, ranks 2-3 of the 4 of master" in shown


@pytest.mark.extras
def test_one_world_over_unequal_nodes_recovers_exactly(platform: Platform, tmp_path: Path):
    hit, calm, go = tmp_path / "hit", tmp_path / "calm", tmp_path / "go"
    flags = ("--epochs=4", "--samples=320")
    job = platform.submit(one_world(hit, *flags, "--step-s=0.5", f"--until={go}"))
    platform.wait_steps(4, hit)
    view = platform.show(job)
    on = {rank.rank: (rank.role, rank.node) for rank in view.ranks}
    assert [on[rank][0] for rank in range(4)] == ["master", "master", "worker", "worker"]
    assert (on[0][1], on[1][1], {on[2][1], on[3][1]}) == ("wide", "wide", {"thin-0", "thin-1"})
    assert [(one.world, one.world_size) for one in view.roles] == [("master", 4)] * 2
    kill(platform.rank_pids(job)[3])  # a rank of the worker
    platform.wait_steps(len(Path(f"{hit}.steps").read_text().splitlines()) + 3, hit)
    kill(platform.rank_pids(job)[1])  # one of the master
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.restarts, view.attempts) == (2, 1)
    assert view.lineage is not None
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert view.lineage.consumed == 4 * 320
    shown = platform.run("show", job).stdout
    assert "worker: 2 × 1 slots, ranks 2-3 of the 4 of master" in shown
    platform.wait_state(platform.submit(one_world(calm, *flags)), "succeeded")
    assert hit.read_text() == calm.read_text()


def test_what_could_never_be_placed_is_refused_by_role(platform: Platform, tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("{roles: {a: {run: x, slots: 1}, b: {run: x, slots: 3}}, pool: mixed}")
    done = platform.run("submit", file, check=False)
    assert done.returncode == 1
    assert "roles.b.resources.slots_per_node" in done.stderr
    file.write_text("{roles: {a: {run: x, slots: 2}, b: {run: x, slots: 2}}, pool: mixed}")
    done = platform.run("submit", file, check=False)
    assert "each role fits alone, but not all at once" in done.stderr
