"""Commands in jobs over three replicas behind a load balancer, of which some are killed in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from phalanx.core.tunnels.frames import FrameKind, TunnelFrame
from phalanx.schemas.wire.tunnels import OpenTunnelRequest
from phalanx.sdk import PhalanxClient
from support.balancer import Balancer
from support.databases import PostgresServer
from support.replicas import Replicas, RunningReplica
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]
ECHO = OpenTunnelRequest(kind="exec", command=["sh", "-c", "echo $$; cat"])


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    one = Balancer()
    yield one
    one.close()


@pytest.fixture
def replicas(postgres: PostgresServer, balancer: Balancer, tmp_path: Path) -> Iterator[Replicas]:
    url = postgres.create("tunnel_replicas", empty=False)
    one = Replicas(tmp_path, url, advertise=balancer.url)
    for _ in range(3):
        one.start()
    # What they tell is the URL of the balancer; each has a port of its own.
    wait_until(lambda: all(_port(replica) for replica in one.running), "the replicas")
    for replica in one.running:
        replica.port = _port(replica)
        replica.url = f"http://127.0.0.1:{replica.port}"
    balancer.servers = [replica.port for replica in one.running]
    one.leader()
    yield one
    one.close()


def _port(replica: RunningReplica) -> int:
    """The port that a process listens on."""
    assert replica.process.poll() is None, replica.log.read_text()
    found = psutil.Process(replica.pid).net_connections("tcp")
    ports = [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]
    return ports[0] if ports else 0


def test_a_killed_replica_ends_its_tunnels_with_a_message_and_no_other_one(
    replicas: Replicas, balancer: Balancer
) -> None:
    token = (replicas.home / "token").read_text().strip()
    with PhalanxClient(balancer.url, token) as client:
        num = replicas.submit(client, 600)
        wait_until(lambda: client.job(num).state == "running", every_s=0.1)
        with client.tunnels.connect(num, ECHO) as tunnel:
            frames = tunnel.frames()
            pid = int(next(frames).data)
            path = f"/api/v1/jobs/{num}/tunnels/{tunnel._view.tunnel}"
            headers = {"Authorization": f"Bearer {token}"}

            def has_it(one: RunningReplica) -> bool:
                answer = httpx.get(f"{one.url}{path}", headers=headers)
                return answer.status_code != httpx.codes.NOT_FOUND

            (holder,) = [one for one in replicas.running if has_it(one)]
            other = next(one for one in replicas.running if one is not holder)
            replicas.kill(other)
            for word in (b"one\n", b"two\n"):
                tunnel.send(TunnelFrame(FrameKind.INPUT, 0, word))
                assert next(frames).data == word
            replicas.kill(holder)
            assert list(frames) == []
            assert "process of the control plane that had it" in tunnel.why
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the command")
        with client.tunnels.connect(num, ECHO) as again:
            assert int(next(again.frames()).data) != pid
        assert client.job(num).attempts == 1
        client.stop(num)
        wait_until(lambda: client.job(num).is_terminal, "its end")
    assert urlsplit(balancer.url).port not in balancer.servers
