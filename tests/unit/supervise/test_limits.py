"""Limits on CPUs and memory: requested of the reaper, and said where they are not enforced."""

import contextlib
from types import SimpleNamespace

import pytest

from phalanx.launch.wire import Channel, pair
from phalanx.supervise.processes import ProcessTree

pytestmark = pytest.mark.unit


def test_the_story_says_where_limits_are_not_enforced():
    asked, said = [], []
    ours, theirs = pair()
    reaper = SimpleNamespace(channel=ours, limit=lambda *limits: asked.append(limits))
    calls = []
    loop = SimpleNamespace(watch=lambda descriptor, call: calls.append(call))
    tree = ProcessTree(loop, reaper, None, {}, limits=(4, 1 << 30), on_warning=said.append)
    with contextlib.closing(ours), theirs:
        tree.listen()
        for problem in ("not delegated", ""):
            Channel(theirs).send({"event": "limited", "id": 1, "problem": problem})
            calls[0]()
    assert asked == [(4, 1 << 30)]
    assert said == ["the limits on cpus and memory are not enforced: not delegated"]


def test_a_job_without_limits_asks_for_none():
    asked = []
    ours, theirs = pair()
    with contextlib.closing(ours), theirs:
        reaper = SimpleNamespace(channel=ours, limit=lambda *limits: asked.append(limits))
        ProcessTree(SimpleNamespace(watch=lambda *_: None), reaper, None, {}).listen()
    assert asked == []
