"""Pipeline stages, alone and around shards and split layers: exact resume, any layout from any."""

import itertools

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


@pytest.mark.extras
def test_killed_and_resumed_the_weights_are_bit_identical(parallel):
    # A default type that is not the loss's: what ranks send each other may not depend on it.
    args = ("--micro-batches", "4", "--dtype", "float64")
    whole = survives(parallel, "pp=2,dp=2", args, 4, (5, 9))
    rows = result_of(whole)["rows"]
    assert len({row["loss"] for row in rows[::2]}) == 1  # ranks 0 and 2: one pipeline
    assert rows[0]["outputs"] == rows[2]["outputs"] != []


def test_stages_train_the_same_weights_and_load_other_layouts(parallel):
    args = ("--dropout", "0", "--device", "meta")
    plain = parallel("auto", *args, name="plain", world=2, reference=2).start().finish()
    said = [row["message"] for row in plain.records(kind="warn")]
    assert any(one.startswith("strategy auto: ddp needs") for one in said)
    stages = parallel("pp=3", *args, "--batch", "16", name="stages", world=3, extra=AT_ONCE)
    stages.every = "3 steps"
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


@pytest.mark.proof
@pytest.mark.parametrize("fault", [(), ("--fault", "norm-of-one-stage")])
def test_clipping_sees_the_gradients_of_all_stages(parallel, fault):
    args = ("--dropout", "0", "--batch", "16", "--accumulate", "2")
    plain = parallel("ddp", *args, "--batch", "8", name="plain", world=2).start().finish()
    stages = parallel("pp=3", *args, *fault, name="stages", world=3, reference=3).start().finish()
    if not fault:
        close(result_of(stages), result_of(plain))
        return
    with pytest.raises(AssertionError):
        close(result_of(stages), result_of(plain))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "batch", "fault"),
    [
        ("fsdp", "4", ()),
        ("dp=2,fsdp=2", "4", ()),
        ("fsdp=2,tp=2", "8", ()),
        ("pp=2,fsdp=2", "8", ()),
        ("fsdp=2,tp=2", "8", ("--fault", "state-left-behind")),
    ],
)
def test_what_an_optimizer_knew_before_prepare_goes_along(parallel, strategy, batch, fault):
    """All with sixteen samples in a batch; the last one is the negative control."""
    args = ("--dropout", "0", "--warm-up", "--epochs", "1", "--batch")
    plain = parallel("ddp", *args, "4", name="plain", world=4).start().finish()
    moved = parallel(strategy, *args, batch, *fault, name="moved", world=4).start().finish()
    if not fault:
        close(result_of(moved), result_of(plain))
        return
    with pytest.raises(AssertionError):
        close(result_of(moved), result_of(plain))


@pytest.mark.proof
def test_a_batch_that_is_not_a_number_is_skipped_by_all_stages(parallel):
    args = ("--dropout", "0", "--poison", "17")
    plain = parallel("ddp", *args, name="plain", world=2).start().finish()
    stages = parallel("pp=2,dp=2", *args, name="stages", world=4).start().finish()
    close(result_of(stages), result_of(plain))
    assert [row["action"] for row in stages.records(kind="guard")] == ["skip", "skip"]


LAYOUTS = [("pp=3", 3), ("pp=4", 4), ("pp=2,dp=2", 4), ("pp=2,fsdp=2", 4), ("pp=2,tp=2", 4)]
SCHEDULES = ("1f1b", "gpipe", "interleaved")


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "world", "accumulate", "precision", "schedule"),
    [
        # Every pair of layout, accumulation, precision and schedule meets at least once.
        (*layout, accumulate, precision, SCHEDULES[(number + number // 3) % 3])
        for number, (layout, accumulate, precision) in enumerate(
            itertools.product(LAYOUTS, (1, 3), ("fp32", "bf16", "fp16"))
        )
    ],
)
def test_matrix_of_stages(parallel, strategy, world, accumulate, precision, schedule):
    args = ("--schedule", schedule, "--accumulate", str(accumulate), "--precision", precision)
    if strategy == "pp=4":
        args = (*args, "--depth", "7")  # two stages a rank need eight layers
    if accumulate > 1:
        survives(parallel, strategy, (*args, "--batch", "4"), world, (4, 5))
    else:
        survives(parallel, strategy, args, world, (4, 7))
