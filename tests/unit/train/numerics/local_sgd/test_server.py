import socket
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from integration.thread_gang import on_threads
from phalanx.core.training.staleness import Clocks, SharedRequests
from phalanx.errors import TrainingError
from phalanx.launch.authentication import (
    AuthenticatedListener,
    NotAuthenticated,
    authenticate,
    listen_on,
)
from phalanx.train.numerics.local_sgd import wire
from phalanx.train.numerics.local_sgd.server import ParameterServer, serve
from phalanx.train.numerics.local_sgd.worker import ServerConnections, shard_of
from phalanx.train.settings import SyncSettings

pytestmark = pytest.mark.unit
SECRET = b"of the generation"
GUARD_S = 60
PLACE = (2, 1)


@given(st.integers(1, 5), st.integers(0, 4), st.lists(st.integers(0, 4), max_size=200))
def test_no_worker_begins_while_it_is_ahead_by_more_than_the_bound(num, bound, turns):
    clocks = Clocks(num, bound)
    at = dict.fromkeys(range(num), 0)
    for turn in turns:
        worker = turn % num
        if clocks.may_go_on(worker):
            assert at[worker] - min(at.values()) <= bound
            at[worker] += 1
            clocks.advance(worker, at[worker])
        else:
            assert at[worker] - min(at.values()) > bound
            with pytest.raises(ValueError, match="without waiting"):
                clocks.advance(worker, at[worker] + 1)
    assert clocks.may_go_on(min(at, key=at.__getitem__)), "the slowest never waits"
    assert max(at.values()) - min(at.values()) <= bound + 1


def test_a_worker_that_left_is_waited_for_no_longer():
    clocks = Clocks(2, 0)
    clocks.advance(0, 1)
    assert not clocks.may_go_on(0)
    clocks.leave(1)
    assert clocks.may_go_on(0)
    with pytest.raises(ValueError, match="2 was its next"):
        clocks.advance(0, 3)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 2])), max_size=150),
)
def test_every_worker_hears_the_same_at_the_same_tick_and_nothing_is_lost(num, turns):
    decisions = SharedRequests(num)
    ticks = dict.fromkeys(range(num), 0)
    heard: dict[int, dict[int, int]] = {worker: {} for worker in range(num)}
    wanted = 0
    for worker, bits in turns:
        worker %= num
        ticks[worker] += 1
        wanted |= bits
        heard[worker][ticks[worker]] = decisions.ask(worker, ticks[worker], bits)
    for _ in range(6):  # all go on until every answer is there
        for worker in range(num):
            while ticks[worker] < max(ticks.values()) or ticks[worker] == min(ticks.values()):
                ticks[worker] += 1
                heard[worker][ticks[worker]] = decisions.ask(worker, ticks[worker], 0)
                if worker == num - 1 and ticks[worker] == max(ticks.values()):
                    break
    for tick in range(1, min(ticks.values()) + 1):
        assert len({heard[worker][tick] for worker in range(num)}) == 1
    told = 0
    for bits in heard[0].values():
        told |= bits
    assert told == wanted


class Gang:
    """Real sockets, a thread for each worker."""

    def __init__(self, num_workers, num_servers=2, **wishes):
        self.wishes = SyncSettings.parse({"method": "server", "servers": num_servers, **wishes})
        self.servers = [
            ParameterServer(self.wishes, num_workers, PLACE) for _ in range(num_servers)
        ]
        listeners = [
            AuthenticatedListener(listen_on("127.0.0.1"), lambda _name: SECRET)
            for _ in self.servers
        ]
        self.addresses = [("127.0.0.1", one.port) for one in listeners]
        self.threads = [
            threading.Thread(target=serve, args=(one, server, lambda: None), daemon=True)
            for one, server in zip(listeners, self.servers, strict=True)
        ]
        for one in self.threads:
            one.start()

    def worker(self, number, place=PLACE):
        return ServerConnections(self.addresses, number, place, SECRET)

    def join(self):
        for one in self.threads:
            one.join(GUARD_S)
            assert not one.is_alive(), "a server has not noticed that all workers left"


def push(servers, clock, done):
    messages = [{"model": 0, "clock": clock, "done": part} for part in servers.parts(done)]
    found = {}
    for answer in servers.ask("push", messages):
        found |= answer["weights"]
    return found


def load(servers, weights):
    head = {"model": 0, "momentum": {}, "clock": 0}
    servers.ask("load", [{**head, "weights": part} for part in servers.parts(weights)])


START = {name: torch.zeros(3) for name in "abcdef"}


def test_names_are_spread_over_the_servers():
    assert {shard_of(name, 2) for name in START} == {0, 1}


def test_in_step_every_worker_gets_the_mean_of_all():
    gang, seen = Gang(3), {}

    def work(number):
        servers = gang.worker(number)
        if number == 0:
            load(servers, START)
        for clock in range(1, 4):
            seen[number, clock] = push(
                servers, clock, {k: torch.full((3,), number + 1.0) for k in START}
            )
        servers.close()

    on_threads(3, work)
    gang.join()
    for (_, clock), weights in seen.items():
        assert set(weights) == set(START)
        assert all((one == -2.0 * clock).all() for one in weights.values())


@pytest.mark.parametrize(("bound", "reached"), [(1, 1), (3, 3), (100, 8)])
def test_a_worker_that_is_ahead_waits_for_the_slowest(bound, reached):
    """With a bound above all there is to do it never waits: the negative control."""
    gang = Gang(2, staleness=bound)
    ahead, slow_may = threading.Event(), threading.Event()
    clocks = {0: 0, 1: 0}

    def work(number):
        servers = gang.worker(number)
        if number == 0:
            load(servers, START)
        for clock in range(1, 9):
            if number == 1 and clock == 1:
                slow_may.wait(GUARD_S)
            push(servers, clock, {name: torch.ones(3) for name in START})
            clocks[number] = clock
            if number == 0 and clock == reached:
                ahead.set()
        servers.close()

    both = threading.Thread(target=on_threads, args=(2, work), daemon=True)
    both.start()
    assert ahead.wait(GUARD_S), "it may be that far ahead"
    assert clocks == {0: reached, 1: 0}
    slow_may.set()
    both.join(GUARD_S)
    gang.join()
    assert clocks == {0: 8, 1: 8}


def test_a_snapshot_is_the_same_for_all_workers_whatever_the_first_to_read_it_pushes():
    """Workers with a bound on staleness: after each snapshot some push at once, others read late."""
    gang, seen = Gang(3, num_servers=1, staleness=5), {}

    def work(number):
        servers = gang.worker(number)
        if number == 0:
            load(servers, START)
        for clock in range(1, 21):
            push(servers, clock, {name: torch.ones(3) for name in START})
            seen[number, clock] = servers.ask("snapshot", [{"model": 0}])[0]["weights"]
        servers.close()

    on_threads(3, work)
    gang.join()
    for (_, clock), weights in seen.items():
        assert all(torch.allclose(one, torch.full((3,), -1.0 * clock)) for one in weights.values())


def test_another_generation_is_refused_and_changes_nothing():
    gang = Gang(1)
    servers = gang.worker(0)
    load(servers, START)
    for stale in [(2, 0), (1, 7), (2, 2)]:
        other = gang.worker(0, stale)
        with pytest.raises(TrainingError, match="the message is of"):
            push(other, 1, {k: torch.ones(3) for k in START})
        other.close()
    weights = push(servers, 1, {k: torch.ones(3) for k in START})
    assert all((one == -1).all() for one in weights.values())
    with pytest.raises(TrainingError, match="made exchange 1, 2 was its next"):
        push(servers, 1, {k: torch.ones(3) for k in START})
    servers.close()
    gang.join()


def test_a_client_without_the_secret_gets_no_answer():
    gang = Gang(1, num_servers=1)
    with (
        socket.create_connection(gang.addresses[0], GUARD_S) as peer,
        pytest.raises(NotAuthenticated),
    ):
        authenticate(peer, b"guess")
    with socket.create_connection(gang.addresses[0], GUARD_S) as peer:
        ask = {"place": list(PLACE), "do": "ask", "worker": 0, "tick": 1, "requests": 1}
        peer.recv(99)  # the challenge
        wire.send(peer, ask)
        peer.sendall(b"\0" * 512)  # as much as a proof has: less is waited for
        with pytest.raises(ConnectionError):
            wire.receive(peer)
    gang.worker(0).close()
    gang.join()
