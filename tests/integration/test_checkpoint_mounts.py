"""Disks that go away, fail and fill up in random order: a job's end is exact or explained, and no good
checkpoint is deleted wrongly."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("obstore")

from integration.mounted_job import (
    AWAY,
    AWAY_EMPTY,
    DURATIONS_S,
    KEEPS,
    KILL,
    KINDS,
    OWNERS,
    STEPS,
    Fault,
    Sequence,
    drawn,
    play,
    undisturbed,
)
from phalanx.checkpoint import catalog
from phalanx.errors import CheckpointMissing

pytestmark = pytest.mark.integration

FAULTS = st.builds(
    Fault,
    st.sampled_from(KINDS),
    st.integers(0, 47).map(lambda one: 5.0 * one),
    st.sampled_from(DURATIONS_S),
    st.integers(1, 15),
    st.booleans(),
)
SEQUENCES = st.builds(
    Sequence,
    st.lists(FAULTS, min_size=1, max_size=7).map(tuple),
    st.sampled_from(KEEPS),
    st.booleans(),
    st.sampled_from(OWNERS),
)
# The folder is away when the second start looks for it, and comes back while that start trains.
LATE_MOUNT = Sequence((Fault(KILL, 140.0), Fault(AWAY, 140.0, 60.0)))


def judged(job):
    """Assert what holds after every sequence; returns the job."""
    what = job.sequence, job.records
    assert job.wrong == [], what
    assert job.lost() == [], what
    assert job.silent == [], what
    assert job.quarantined == [], what
    if job.finished:
        assert torch.equal(job.weights, undisturbed()), what
        assert job.problem or job.committed_last(), what
    else:
        assert job.failures, what
        assert all(one.message for one in job.failures)
    return job


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mounts") / "job"


def played(folder, sequence, **options):
    with pytest.MonkeyPatch.context() as patch:
        return play(folder, sequence, patch, **options)


def test_a_job_to_which_nothing_happens(folder):
    job = judged(played(folder, Sequence((), far=True)))
    assert job.counts["starts"] == 1
    assert job.counts["commits"] == 7
    assert job.counts["deletions near"] == job.counts["deletions far"] == 5


@settings(max_examples=30, derandomize=True, database=None)
@given(SEQUENCES)
def test_the_end_of_a_job_is_exact_or_explained(folder, sequence):
    judged(played(folder, sequence))


@pytest.mark.parametrize("kind", [AWAY, AWAY_EMPTY])
def test_a_late_mount_is_waited_for(folder, kind):
    faults = (Fault(KILL, 140.0), Fault(kind, 140.0, 60.0))
    job = judged(played(folder, Sequence(faults)))
    assert job.counts["starts that waited"] == 1
    assert job.counts["steps"] <= STEPS + 3


def test_a_mount_that_stays_away_fails_the_job_with_its_reason(folder):
    faults = (Fault(KILL, 140.0), Fault(AWAY, 140.0, 1000.0))
    job = judged(played(folder, Sequence(faults)))
    assert not job.finished
    assert isinstance(job.failures[0], CheckpointMissing)


def test_without_the_record_of_the_last_checkpoint_a_late_mount_costs_all_steps_in_silence(folder):
    job = played(folder, LATE_MOUNT, hands_over=False)
    assert job.silent
    assert job.counts["steps"] > STEPS + 3


def test_a_retention_that_goes_by_age_alone_deletes_good_checkpoints(folder, monkeypatch):
    def expired(manifests, keep, now=None, head=None, pinned=()):
        by_age = sorted(manifests.values(), key=lambda one: one.order)
        return by_age[: -keep.last]

    monkeypatch.setattr(catalog, "expired", expired)
    assert played(folder, LATE_MOUNT, hands_over=False).wrong


@pytest.mark.proof
def test_a_thousand_sequences(folder):
    counts, failures = Counter(), Counter()
    for seed in range(1000):
        job = judged(played(folder, drawn(seed)))
        counts += job.counts
        ended = "equal to the undisturbed run" if job.finished else "failed with its reason"
        counts[f"jobs: {ended}"] += 1
        counts["jobs: finished, last save failed and said"] += bool(job.finished and job.problem)
        failures.update(one.code for one in job.failures)
    print("sequences: 1000")
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"failures by reason: {dict(failures)}")
    print("silent starts: 0; quarantined: 0; good checkpoints deleted wrongly: 0")
