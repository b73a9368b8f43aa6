"""A measurement that is given up gives its slots back."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.cli import measuring
from phalanx.errors import ServerUnavailable

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
    caller = SimpleNamespace(python="python", cwd=Path("/"), env={}, owner=lambda: "me")
    client = Client(refuses)
    with pytest.raises(KeyboardInterrupt):
        measuring.run_to_end(SimpleNamespace(caller=caller), client, "m", (), {"name": "a"})
    assert client.stopped == [(7, "cancel")]
