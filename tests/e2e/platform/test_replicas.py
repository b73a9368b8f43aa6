"""Two control planes on one PostgreSQL database: the leader is killed, or stopped beyond its lease."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from support.databases import PostgresServer
from support.replicas import NEXT_RELEASE, UNGUARDED, Replicas, RunningReplica
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]
_numbers = count()


@pytest.fixture
def replicas(postgres: PostgresServer, tmp_path: Path) -> Iterator[Replicas]:
    one = Replicas(tmp_path, postgres.create(f"replicas_{next(_numbers)}", empty=False))
    yield one
    one.close()


def test_a_standby_goes_on_where_a_killed_leader_was(replicas: Replicas) -> None:
    """Jobs that run are left alone, queued ones start, and reports of the meantime arrive once."""
    replicas.start()
    replicas.start()
    replicas.wait()
    leader, standby = replicas.leader(), replicas.standby()
    with replicas.client(standby) as client:
        assert sorted(one.role for one in client.info().replicas) == ["leader", "standby"]
        running = replicas.submit(client, 12)
        # The leader hears at once of a job that another replica has stored.
        events = client.events(running, after=1, wait_s=30).events
        assert [one.kind for one in events][:1] == ["attempt_placed"]
        wait_until(lambda: client.job(running).state == "running", every_s=0.1)
        replicas.kill(leader)
        queued = [replicas.submit(client, 0) for _ in range(3)]
        wait_until(replicas.are_over, "the jobs", every_s=0.5)
        assert client.job(running).attempts == 1 and len(queued) == 3
        shown = [one.kind for one in client.history(running)]
        assert len(shown) == len(set(shown)), "an event came twice"
    assert set(replicas.starts().values()) == {1}
    assert standby.role() == "leader"
    assert (replicas.home / "server.json").read_text().count(standby.url) == 1


def test_every_replica_serves_grpc_and_another_one_continues_a_stream(
    replicas: Replicas, free_ports: list[int]
) -> None:
    grpc = pytest.importorskip("grpc")
    from phalanx.schemas.rpc import jobs_pb2, jobs_pb2_grpc

    for port in free_ports[:2]:
        replicas.env["PHALANX__GRPC__PORT"] = str(port)
        replicas.start()
    replicas.wait()
    standby, leader = replicas.standby(), replicas.leader()
    ports = dict(zip((one.pid for one in replicas.running), free_ports, strict=False))
    metadata = [("authorization", f"Bearer {(replicas.home / 'token').read_text().strip()}")]
    with (
        grpc.insecure_channel(f"127.0.0.1:{ports[standby.pid]}") as channel,
        grpc.insecure_channel(f"127.0.0.1:{ports[leader.pid]}") as other,
    ):
        stub = jobs_pb2_grpc.JobsStub(channel)
        request = jobs_pb2.SubmitRequest()
        request.spec.update(replicas.request(replicas.new_job(), 2).spec)
        num = stub.Submit(request, metadata=metadata, timeout=60).job.num
        assert stub.Get(jobs_pb2.GetRequest(num=num), metadata=metadata, timeout=60).num == num
        stream = stub.Events(jobs_pb2.EventsRequest(num=num), metadata=metadata, timeout=240)
        seen = [next(stream), next(stream)]  # the leader has placed the job
        assert [one.event.kind for one in seen] == ["submitted", "attempt_placed"]
        replicas.kill(standby)
        with pytest.raises(grpc.RpcError) as caught:
            seen.extend(stream)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        wanted = jobs_pb2.EventsRequest(num=num, place=seen[-1].place)
        rest = list(jobs_pb2_grpc.JobsStub(other).Events(wanted, metadata=metadata, timeout=240))
    numbers = [one.event.seq for one in [*seen, *rest]]
    assert numbers == list(range(1, len(numbers) + 1)), "none is lost or comes twice"
    assert rest[-1].event.state == "succeeded"


@pytest.fixture
def free_ports() -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return found


def frozen_past_its_lease(replicas: Replicas) -> RunningReplica:
    """Stop the leader while it works, wait for another one, and let it wake; returns the one that woke."""
    leader = replicas.leader()
    with replicas.client(replicas.standby()) as client:
        for _ in range(12):
            replicas.submit(client, 0.2)
        wait_until(lambda: replicas.loop_writes(leader), "the first write", every_s=0.05)
        leader.process.send_signal(signal.SIGSTOP)
        other = replicas.leader(leader)
        wait_until(lambda: replicas.loop_writes(other), "the new leader's writes", every_s=0.1)
    return leader


def test_a_leader_that_was_stopped_past_its_lease_writes_nothing(replicas: Replicas) -> None:
    replicas.start()
    replicas.start()
    replicas.wait()
    replicas.audit()
    old = frozen_past_its_lease(replicas)
    before = replicas.loop_writes(old)
    old.process.send_signal(signal.SIGCONT)
    wait_until(lambda: old.role() == "standby", "it stands by", every_s=0.1)
    wait_until(replicas.are_over, "the jobs", every_s=0.5)
    assert replicas.loop_writes(old) == before
    assert set(replicas.starts().values()) == {1}
    assert old.process.poll() is None and len(replicas.running) == 2


def test_without_the_guard_it_would_write(replicas: Replicas) -> None:
    """The guard of the test above, off in one process: two processes run the loops at the same time."""
    replicas.start(UNGUARDED)
    replicas.wait()
    replicas.start()
    replicas.wait()
    replicas.audit()
    old = frozen_past_its_lease(replicas)
    before = replicas.loop_writes(old)
    old.process.send_signal(signal.SIGCONT)
    with replicas.client(replicas.leader(old)) as client:

        def writes() -> bool:
            replicas.submit(client, 0)
            return replicas.loop_writes(old) > before

        wait_until(writes, "a write of the old leader", every_s=0.5)
    assert old.role() == "leader" == replicas.leader(old).role()


def test_releases_are_exchanged_one_replica_after_the_other(replicas: Replicas) -> None:
    """The later release changes the tables first; the earlier one goes on, also after a new start."""
    first = replicas.start()
    replicas.wait()
    with replicas.client(first) as client:
        running = replicas.submit(client, 15)
        wait_until(lambda: client.job(running).state == "running", every_s=0.1)
    later = replicas.start(NEXT_RELEASE)
    wait_until(later.has_answered, "the later release")
    assert replicas.ask("SELECT version_num FROM alembic_version") == [("9998",)]
    again = replicas.start()
    wait_until(again.has_answered, "the earlier release, on the later schema")
    replicas.leave(first)
    other = replicas.leader()
    with replicas.client(again) as client:
        assert sorted(one.version for one in client.info().replicas)[-1] == "next"
        replicas.submit(client, 0)
        replicas.leave(again if other is later else later)
        assert replicas.leader() is other
    with replicas.client(other) as client:
        replicas.submit(client, 0)
        wait_until(replicas.are_over, "the jobs", every_s=0.5)
        assert client.job(running).attempts == 1
    assert set(replicas.starts().values()) == {1}
    ready = httpx.get(f"{other.url}/readyz").json()
    assert ready["status"] == "ready" and ready["leader"].endswith(f":{other.pid}")
