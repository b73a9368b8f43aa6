"""Rank 0's verdict on the facts that ranks left in the store, without sockets."""

import datetime
import json
from dataclasses import asdict, replace

import pytest
import torch.distributed as dist

from phalanx.errors import PreflightFailed
from phalanx.train.gang import preflight
from phalanx.train.gang.context import RankInfo

pytestmark = pytest.mark.unit
PATIENCE = datetime.timedelta(seconds=0.01)
INFO = RankInfo(launched=True, world_size=2, local_world_size=2)
FACTS = [
    replace(preflight.facts_of(replace(INFO, rank=at, local_rank=at), "", 0), host="a", pid=7 + at)
    for at in (0, 1)
]


def verdict(*facts, twice=()):
    store = dist.HashStore()
    for one in facts:
        store.set(f"facts/{one.rank}", json.dumps(asdict(one)))
    for one in twice:
        store.set(f"twice/{one.rank}", json.dumps(asdict(one)))
        store.add("taken", 1)
    preflight._judge(INFO, store, PATIENCE)
    preflight._conclude(INFO, store, PATIENCE)
    return store.get("verdict").decode()


def test_ranks_that_fit_together_pass():
    assert verdict(*FACTS) == ""


def test_a_rank_that_does_not_connect_is_named():
    assert verdict(FACTS[0]) == "rank 1 has not connected within 0:00:00.010000"


def test_two_processes_with_one_rank_are_named():
    other = replace(FACTS[1], host="b", pid=9)
    said = verdict(*FACTS, twice=[other])
    assert said == "two processes are rank 1: a pid 8 and b pid 9"


def test_another_version_is_named():
    old = replace(FACTS[1], versions={**FACTS[1].versions, "torch": "1.0"})
    assert "rank 1 (a) has torch 1.0" in verdict(FACTS[0], old)


def test_one_rank_alone_passes_and_a_wrong_world_fails():
    preflight.check(RankInfo(launched=True), dist.HashStore(), PATIENCE)
    with pytest.raises(PreflightFailed, match="rank 1 has not connected"):
        preflight.check(INFO, dist.HashStore(), PATIENCE)
