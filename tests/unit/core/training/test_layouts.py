"""Layouts with pipeline stages, cuts, bubbles, and what estimates recommend."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.gang import meshes
from phalanx.core.gang.meshes import Layout
from phalanx.core.training import estimates, pipelines
from phalanx.core.training.estimates import GIB, ModelProfile

pytestmark = pytest.mark.unit
sizes = st.integers(1, 3)


@given(sizes, sizes, sizes, sizes)
def test_ranks_of_one_pipeline_share_samples_and_ranks_of_one_stage_do_not(pp, dp, fsdp, tp):
    layout = Layout(pp=pp, dp=dp, fsdp=fsdp, tp=tp)
    ranks = range(layout.world_size)
    assert layout.world_size == pp * layout.stage_size
    for rank in ranks:
        at = layout.coordinates(rank)
        assert rank // layout.stage_size == at["pp"]
        same = [one for one in ranks if layout.place(one) == layout.place(rank)]
        assert len(same) == pp * tp
        assert layout.speaker(rank) == same[0]
        assert layout.twin(rank) == next(
            one for one in same if layout.coordinates(one)["pp"] == at["pp"]
        )
    assert sorted({layout.place(rank)[0] for rank in ranks}) == list(range(layout.num_places))


@pytest.mark.parametrize(
    ("value", "worlds", "said"),
    [
        ("auto", [3], None),
        ({"fsdp": 2, "tp": 2}, [4, 8], None),
        ({"fsdp": 2, "tp": 2}, [6], "fsdp=2,tp=2 needs a multiple of 4 ranks, there are 6"),
        ({"pp": 2, "dp": 2}, [6], "pp=2,dp=2 needs exactly 4 ranks, there are 6"),
        ({"fsdp": 2, "tp": 2}, [4, 6, 8], "there are 6 (the gang may have 4, 6 or 8)"),
        ({"pp": 2, "dp": 2}, [4, 8], "leave dp out to replicate (the gang may have 4 or 8)"),
    ],
)
def test_a_layout_has_to_fit_every_size_of_the_gang(value, worlds, said):
    found = meshes.problem(value, worlds)
    assert found is None if said is None else found.endswith(said)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 6))
def test_cuts_are_the_best_there_are(weights, num):
    if len(weights) < num:
        with pytest.raises(ValueError, match="too few"):
            pipelines.cuts(weights, num)
        return

    def heaviest(begins):
        ends = [*begins[1:], len(weights)]
        assert all(a < b for a, b in zip(begins, ends, strict=True))
        return max(sum(weights[a:b]) for a, b in zip(begins, ends, strict=True))

    others = itertools.combinations(range(1, len(weights)), num - 1)
    assert heaviest(pipelines.cuts(weights, num)) == min(heaviest([0, *one]) for one in others)


def test_bubbles():
    assert pipelines.bubble("1f1b", 4, 16) == pipelines.bubble("gpipe", 4, 16) == 3 / 19
    assert pipelines.bubble("interleaved", 4, 16) == 3 / 35
    assert pipelines.bubble("1f1b", 1, 16) == 0
    assert [pipelines.num_micro_batches(12, most) for most in (1, 5, 8, 99)] == [1, 4, 6, 12]


def outline(billions, **more):
    size = int(billions * 4e9)
    layers = (size // 32,) * 32
    given = {
        "parameter_bytes": size,
        "trainable_bytes": size,
        "optimizer_bytes": 2 * size,
        "block_bytes": size // 32,
        "layer_bytes": layers,
        "tp_part": 0.9,
        "batch": 8,
        "activation_bytes": 4 * GIB,
        "flops": 6e9 * billions * 8 * 2048,
        "precision": "bf16",
    }
    return ModelProfile(**{**given, **more})


@pytest.mark.parametrize(
    ("world", "billions", "best"),
    [
        ("8xH100", 0.3, "ddp"),
        ("8xH100", 7, "fsdp"),
        ("4x8xH100", 0.3, "ddp"),
        ("1xH100", 0.3, "single"),
        ("8xT4", 1.2, "fsdp"),
    ],
)
def test_the_simplest_layout_that_fits_is_recommended(world, billions, best):
    choice = estimates.recommend(estimates.parse_devices(world), outline(billions))
    assert choice.best.name == best
    assert choice.best.fits
    assert best in choice.why


def test_what_does_not_fit_is_said():
    choice = estimates.recommend(estimates.parse_devices("2xT4"), outline(70))
    assert not choice.best.fits
    assert "nothing fits" in choice.why
    assert "more devices do not help; use a smaller batch" in choice.why  # two blocks are too much
    choice = estimates.recommend(estimates.parse_devices("2xT4"), outline(13))
    assert "fsdp over 16 x 2 x T4 would fit with 13.1 GiB" in choice.why


def test_estimates_divide_what_layouts_divide():
    world, what = estimates.parse_devices("8xH100"), outline(1)
    of = {
        str(one.layout): one
        for one in map(
            lambda layout: estimates.estimate(layout, world, what),
            [Layout(dp=8), Layout(fsdp=8), Layout(tp=8), Layout(pp=8)],
        )
    }
    whole = of["dp=8"]
    assert whole.parameter_bytes == pytest.approx(what.parameter_bytes)
    for name, part in (("fsdp=8", 1 / 8), ("tp=8", 0.9 / 8 + 0.1), ("pp=8", 1 / 8)):
        assert of[name].optimizer_bytes == pytest.approx(part * whole.optimizer_bytes, rel=1e-6)
    assert of["pp=8"].bubble == pytest.approx(7 / 23)
    assert of["dp=8"].bubble == 0


def test_published_figures():
    """ZeRO (Rajbhandari and others 2020): 16 bytes a parameter with Adam in mixed precision, a copy in
    half precision counted, so 120 GB for 7.5 billion; on 64 devices 1.9 GB with everything divided.

    Here gradients are in fp32, which makes two bytes more, DDP has buckets beside them, and the copies
    are not divided.
    """
    world = estimates.parse_devices("8x8xA100")
    size = 30 * 10**9
    what = outline(
        7.5,
        parameter_bytes=size,
        trainable_bytes=size,
        optimizer_bytes=2 * size,
        cast_bytes=size // 2,
        activation_bytes=0,
    )
    whole = estimates.estimate(Layout(dp=64), world, what)
    buckets = size
    assert whole.total_bytes - buckets == pytest.approx(7.5e9 * 18)
    shards = estimates.estimate(Layout(fsdp=64), world, what)
    assert shards.total_bytes - shards.gathered_bytes == pytest.approx(7.5e9 * 16 / 64, rel=1e-6)
    assert shards.gathered_bytes == pytest.approx(2 * what.block_bytes + what.cast_bytes)
    # Six operations a parameter and token (Kaplan and others 2020), at 40 % of what A100 can do.
    tokens = 8 * 2048
    assert whole.compute_s == pytest.approx(6 * 7.5e9 * tokens / (0.4 * 312e12))


@pytest.mark.parametrize("text", ["8", "8xH1000", "0xH100", "xH100", "8 H100"])
def test_worlds_that_make_no_sense(text):
    with pytest.raises(ValueError, match=r"must be|is not known"):
        estimates.parse_devices(text)
    assert estimates.parse_devices("2x4xh100").num_ranks == 8
