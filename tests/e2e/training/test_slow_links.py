"""Two ranks with a link of a known rate between them: what the doctor and a profile make of it."""

import json
import re
import sys
from pathlib import Path

import pytest

from e2e.training.gang import HANG_GUARD_S, HERE

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import shaped_link

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.skipif(bool(shaped_link.refusal()), reason=shaped_link.refusal() or "it can"),
]


def between(rate, words, env=lambda rank: {}):
    """Run a program on both ends of a link; what rank 0 printed."""
    with shaped_link.two_rooms(rate) as rooms:
        how = shaped_link.in_rooms(rooms)
        extra = [{**one, **env(rank)} for rank, one in enumerate(how["extra"])]
        ranks = shaped_link.gang([list(words)] * 2, how["leads"], extra)
        return shaped_link.ended(ranks, 3 * HANG_GUARD_S)


@pytest.mark.parametrize("rate", ["100mbit", pytest.param("1gbit", marks=pytest.mark.proof)])
def test_the_doctor_finds_the_rate_of_the_link(rate):
    said = between(rate, ("-m", "phalanx.train.programs.netcheck"))
    found = re.search(r"move ([\d.]+) MB/s over each link; .*: ([\d.]+) MB/s", said)
    wanted = shaped_link.bytes_per_s(rate) / 1e6
    assert found, said
    assert float(found[2]) == pytest.approx(wanted, rel=0.1), said
    assert float(found[1]) == pytest.approx(wanted, rel=0.25), said


def profile(gang, rate, name):
    job = gang(name=name, world=2)
    job.generation = 0
    job.here().mkdir(parents=True)

    def env(rank):
        own = job.env(rank, 0)
        return {key: own[key] for key in own if key.startswith("PHALANX_")}

    words = (
        HERE / "profile_job.py",
        "--out",
        job.root / "out",
        "--at",
        4,
        "--trace",
        0,
        "--steps",
        12,
        "--batch",
        512,
    )
    between(rate, map(str, words), env)
    (found,) = job.records(0, kind="profile")
    return found


def test_a_link_that_is_too_slow_for_the_gradients_is_named(gang):
    found = profile(gang, "20mbit", "slow")
    print(json.dumps({key: found[key] for key in ("finding", "said", "advice")}))
    assert found["finding"] == "communication-bound", found
    assert "compression" in found["advice"] and "doctor --network" in found["advice"]


def test_the_same_job_without_the_slow_link_is_not_said_to_wait_for_it(gang):
    found = profile(gang, "0", "fast")
    assert found["finding"] != "communication-bound", found
