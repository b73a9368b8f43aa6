"""A measurement that is given up gives its slots back."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.cli.client import measuring
from phalanx.errors import NotSupported, ServerUnavailable

pytestmark = pytest.mark.unit


class Client:
    def __init__(self, refuses):
        self.stopped, self.refuses = [], refuses

    def submit(self, body):
        return SimpleNamespace(job=SimpleNamespace(num=7))

    def job(self, num):
        raise KeyboardInterrupt

    def stop(self, num, goal):
        self.stopped.append((num, goal))
        if self.refuses:
            raise ServerUnavailable("it is gone too")


@pytest.mark.parametrize("refuses", [False, True])
def test_ctrl_c_cancels_the_job(refuses):
    invocation = SimpleNamespace(python="python", cwd=Path("/"), env={}, owner=lambda: "me")
    client = Client(refuses)
    with pytest.raises(KeyboardInterrupt):
        measuring.run_to_end(
            SimpleNamespace(url=None, invocation=invocation), client, "m", (), {"name": "a"}
        )
    assert client.stopped == [(7, "cancel")]


class Queued(Client):
    """A job in the queue, for these reasons, then over."""

    def __init__(self, reasons):
        super().__init__(refuses=False)
        self.reasons = list(reasons)

    def job(self, num):
        if not self.reasons:
            return SimpleNamespace(is_terminal=True)
        stays = SimpleNamespace(code=self.reasons.pop(0), message="needs 1 × 64 slots")
        return SimpleNamespace(is_terminal=False, pool=None, pending_reason=stays)

    def events(self, num, after, wait_s):
        return SimpleNamespace(events=[])


def run(client):
    invocation = SimpleNamespace(python="python", cwd=Path("/"), env={}, owner=lambda: "me")
    measuring.run_to_end(
        SimpleNamespace(url=None, invocation=invocation), client, "m", (), {"name": "a"}
    )


def test_a_job_that_no_pool_can_hold_is_not_waited_for():
    client = Queued(["unplaceable"] * 9)
    with pytest.raises(NotSupported, match="needs 1 × 64 slots"):
        run(client)
    assert client.stopped == [(7, "cancel")]


def test_a_platform_that_has_just_started_is_given_time():
    client = Queued([*["unplaceable"] * 4, "waiting_for_slots", *["unplaceable"] * 4])
    run(client)
    assert client.stopped == []
