"""Nodes that do not reach one another, found through the rendezvous store alone."""

import datetime
import socket
import threading
from dataclasses import replace

import pytest
import torch.distributed as dist

from phalanx.errors import PreflightFailed
from phalanx.launch.ports import free_port
from phalanx.train.gang import preflight
from phalanx.train.gang.context import RankInfo

pytestmark = pytest.mark.integration
PATIENCE = datetime.timedelta(seconds=60)


@pytest.fixture
def gang():
    """Two nodes of one rank each, as threads: what each of them raised."""
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as master:

        def run(patience=PATIENCE, ranks=(0, 1)):
            said = {}

            def one(rank):
                info = RankInfo(
                    launched=True, rank=rank, world_size=2, node_rank=rank, local_world_size=1,
                    master_address=master.getsockname()[0], master_port=master.getsockname()[1],
                )  # fmt: skip
                try:
                    preflight.check(info, store, patience)
                    said[rank] = ""
                except PreflightFailed as error:
                    said[rank] = error.message

            threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            return said

        yield run


def test_nodes_that_reach_one_another_go_on(gang):
    assert gang() == {0: "", 1: ""}


def test_a_node_behind_a_firewall_is_named_with_its_address(gang, monkeypatch):
    real, host = preflight.facts_of, socket.gethostname()

    def shut(info, address, port):
        facts = real(info, address, port)
        closed = free_port()
        return facts if info.rank == 0 else replace(facts, port=closed)

    monkeypatch.setattr(preflight, "facts_of", shut)
    said = gang()
    assert said[0] == said[1]
    assert said[0].startswith(
        f"node rank 0 ({host}) cannot reach node rank 1 ({host}) at 127.0.0.1:"
    )
    assert "refused" in said[0]


def test_a_rank_that_does_not_come_is_named(gang):
    said = gang(patience=datetime.timedelta(seconds=0.05), ranks=(0,))
    assert said == {0: "rank 1 has not connected within 0:00:00.050000"}
