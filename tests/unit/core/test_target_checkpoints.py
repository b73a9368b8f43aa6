"""Retention by ranks never deletes what a trial saved at its target."""

import pytest
from tests.support.manifests import manifest_of

from phalanx.core.training.checkpoints import AT_TARGET, Keep, expired

pytestmark = pytest.mark.unit


def test_a_checkpoint_of_a_target_stays() -> None:
    made = [
        manifest_of(step, root="r", why=AT_TARGET if step == 2 else "every") for step in range(1, 5)
    ]
    gone = expired({one.name: one for one in made}, Keep(last=1))
    assert [one.step for one in gone] == [1, 3]
