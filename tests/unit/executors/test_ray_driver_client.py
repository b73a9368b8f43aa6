"""The client of the Ray driver, against a program that answers as the driver does."""

import os
import sys

import pytest

from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.ray.driver_client import DriverClient

pytestmark = pytest.mark.unit
DRIVER = """
import json, sys

sys.stdin.readline()
print(json.dumps({"id": 0, "ok": {}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "die":
        break
    body = {"id": asked["id"], "ok": asked.get("value")}
    if asked["op"] == "refuse":
        body = {"id": asked["id"], "error": {"kind": "refused", "message": "no room"}}
    print("no JSON" if asked["op"] == "babble" else json.dumps(body), flush=True)
"""


def pipes():
    """The pipes that this process holds."""
    held = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            held.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the descriptor of the listing itself
            continue
    return {name for name in held if name.startswith("pipe:")}


@pytest.fixture
def client(tmp_path, monkeypatch):
    program, script = tmp_path / "python", tmp_path / "driver.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{script}"\n')
    program.chmod(0o700)
    script.write_text(DRIVER)
    monkeypatch.setattr("phalanx.executors.ray.driver_client.sys.executable", str(program))
    made = DriverClient({"address": "auto"}, tmp_path / "driver.log")
    yield made
    made.close()


def test_an_answer_or_a_refusal_comes_back(client):
    assert client.wait_ready(60)
    assert client.ask("echo", value=3) == 3
    with pytest.raises(LaunchError, match="no room"):
        client.ask("refuse")


@pytest.mark.parametrize("last", ["die", "babble"])
def test_a_request_that_a_driver_does_not_answer_fails_at_its_end(client, last):
    assert client.wait_ready(60)
    with pytest.raises(ExecutorUnavailable, match="ended before it answered"):
        client.ask(last, answer_s=60)


@pytest.mark.parametrize("last", ["echo", "die"])
def test_nothing_is_left_open_after_the_driver(tmp_path, monkeypatch, request, last):
    before = pipes()
    client = request.getfixturevalue("client")
    assert client.wait_ready(60)
    if last == "die":
        with pytest.raises(ExecutorUnavailable):
            client.ask("die")
    client.close()
    assert pipes() - before == set()
    with pytest.raises(ExecutorUnavailable):
        client.ask("echo")
