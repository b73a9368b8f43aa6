"""What a spec says about the files of checkpoints reaches the ranks."""

import pytest

from phalanx.core.gang.ranks import RankFiles, rank_environment
from phalanx.errors import SpecInvalid
from phalanx.supervise.ranks.generation import gang_environment
from phalanx.train.gang import context

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"compress": "zstd"}, "zstd"), ({"compress": "none"}, None), ({}, None)],
)
def test_compression_goes_from_the_spec_to_every_rank(rig, given, expected):
    num = rig.submit(checkpoint=given)
    rig.turn()
    supervisor = rig.supervisor(num)
    orders = supervisor.ready()
    gang = gang_environment(supervisor.assignment, orders)
    env = rank_environment(gang, 0, 1, RankFiles("r", "c", "e"))
    assert env.get("PHALANX_CHECKPOINT_COMPRESS") == expected
    assert context.read(env).compress == (expected or "none")


def test_another_word_is_refused_when_it_is_submitted(rig):
    with pytest.raises(SpecInvalid, match="compress"):
        rig.submit(checkpoint={"compress": "gzip"})
