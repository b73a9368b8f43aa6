"""Pipeline stages, alone and around shards and tensor parallel layers: exact resume, any layout from any."""

import pytest

from e2e.training.gang import HERE
from e2e.training.test_train_parallel import AT_ONCE, close, result_of, survives

pytestmark = pytest.mark.e2e

DEEP = ("--depth", "5", "--batch", "8")


@pytest.fixture
def parallel(gang):
    def make(strategy, *args, **options):
        job = gang("--strategy", strategy, *DEEP, *args, **options)
        job.script = HERE / "parallel_job.py"
        return job

    return make


def test_killed_and_resumed_the_weights_are_bit_identical(parallel):
    whole = survives(parallel, "pp=2,dp=2", ("--micro-batches", "4"), 4, (5, 9))
    rows = result_of(whole)["rows"]
    assert len({row["loss"] for row in rows[::2]}) == 1  # ranks 0 and 2: one pipeline
    assert rows[0]["outputs"] == rows[2]["outputs"] != []


def test_stages_train_the_same_weights_and_load_other_layouts(parallel):
    args = ("--dropout", "0")
    plain = parallel("ddp", *args, name="plain", world=2, reference=2).start().finish()
    stages = parallel("pp=3", *args, "--batch", "16", name="stages", world=3, every="3 steps", extra=AT_ONCE)
    stages.start().wait_for_step(4)
    stages.kill(1)
    stages.args = ("--strategy", "fsdp", *DEEP, *args)
    stages.world, stages.reference = 2, 2
    stages.start().wait_for_step(7)
    stages.kill(0)
    stages.args = ("--strategy", "pp=2", *DEEP, *args, "--batch", "16", "--schedule", "interleaved")
    stages.start().finish()
    assert stages.records(kind="restored")
    close(result_of(stages), result_of(plain))
