"""What a spec says about the files of checkpoints reaches the ranks."""

import pytest

from phalanx.core.contract.environment import to_environment
from phalanx.core.contract.gang import RankFiles
from phalanx.errors import SpecInvalid
from phalanx.train.gang import context

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"compress": "zstd"}, "zstd"), ({"compress": "none"}, "none"), ({}, "none")],
)
def test_compression_goes_from_the_spec_to_every_rank(rig, given, expected):
    num = rig.submit(checkpoint=given)
    rig.turn()
    supervisor = rig.supervisor(num)
    orders = supervisor.ready()
    gang = supervisor.assignment.gang
    env = to_environment(gang.rank(orders, 0, 0, RankFiles("r", "c", "e")))
    assert env["PHALANX_CHECKPOINT_COMPRESS"] == expected
    assert context.read(env).checkpoint.compress == expected


def test_another_word_is_refused_when_it_is_submitted(rig):
    with pytest.raises(SpecInvalid, match="compress"):
        rig.submit(checkpoint={"compress": "gzip"})
