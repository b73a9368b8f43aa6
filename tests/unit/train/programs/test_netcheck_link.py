"""Two ranks that cannot reach one another over TCP still come to the end of the measurement."""

import socket
from types import SimpleNamespace

import pytest

from phalanx.train.programs import netcheck

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_gets_through(monkeypatch, rank):
    monkeypatch.setattr(netcheck, "_CONNECT_S", 0.05)
    master = SimpleNamespace(master=("127.0.0.1", 1))
    monkeypatch.setattr(netcheck.context, "read", lambda: master)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = float(closed.getsockname()[1])
        sums = iter([port, 0.0])
        rates = []

        def total(value):
            rates.append(value)
            return [next(sums)]

        run = SimpleNamespace(rank=rank, world_size=2, all_reduce_sum=total)
        assert netcheck.link_bytes_per_s(run) == 0.0
    assert rates[1] == 0.0, "it says so to the others, who wait for it"
