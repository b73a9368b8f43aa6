"""Retention by ranks never deletes what a trial saved at its target."""

import pytest
from tests.support.manifests import manifest_of

from phalanx.core.training.checkpoints import AT_TARGET, Keep, expired, expired_targets

pytestmark = pytest.mark.unit


def test_a_checkpoint_of_a_target_stays() -> None:
    made = [
        manifest_of(step, root="r", why=AT_TARGET if step == 2 else "every") for step in range(1, 5)
    ]
    gone = expired({one.name: one for one in made}, Keep(last=1))
    assert [one.step for one in gone] == [1, 3]


@pytest.mark.parametrize(("is_over", "gone"), [(True, [1, 2, 3]), (False, [1, 2])])
def test_targets_that_the_policy_does_not_keep_expire_but_for_a_live_trials_newest(
    is_over: bool, gone: list[int]
) -> None:
    made = [manifest_of(step, root="r", why=AT_TARGET) for step in range(1, 4)]
    made += [manifest_of(step, root="r") for step in range(4, 6)]
    manifests = {one.name: one for one in made}
    found = expired_targets(manifests, Keep(last=1), is_over=is_over)
    assert [one.step for one in found] == gone
    assert not expired_targets(manifests, Keep(), is_over=is_over)
