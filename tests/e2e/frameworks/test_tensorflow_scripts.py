"""TensorFlow scripts, unmodified: MultiWorkerMirroredStrategy over TF_CONFIG, killed and recovered."""

import pytest

from e2e.frameworks.foreign import committed, example, metric, needs, wait_committed
from e2e.platform.harness import kill

pytestmark = [
    pytest.mark.extras,
    pytest.mark.e2e,
    needs("tensorflow", "make test-extras installs it"),
]


def test_killed_and_recovered(platform):
    job = platform.submit(example("tensorflow", "--steps=12", "--pause=1"))
    rank = platform.rank_pids(job)[1]
    wait_committed(platform, job)
    kill(rank)
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    said = platform.run("logs", job).stdout.splitlines()
    begun = [int(line.split("begins at step")[1]) for line in said if "begins at step" in line]
    # Both workers began at the beginning, and then together behind it.
    assert sorted(begun)[:2] == [0, 0] and len(begun) == 4
    assert len(set(begun[2:])) == 1 and begun[3] > 0
    losses = metric(platform, job, "loss")
    assert sorted(losses) == list(range(1, 13))
    assert losses[12] < losses[1] / 10
    newest = committed(view)[0]
    assert newest.manifest.step == 12
    names = {entry.path for entry in newest.manifest.files}
    assert {"checkpoint", "ckpt-12.index", "ckpt-12.data-00000-of-00001"} <= names
