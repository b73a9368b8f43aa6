"""Profiles asked for and kept."""

import pytest

from phalanx.core.jobs.desired import Action
from phalanx.errors import Conflict, NotFound, UserError
from phalanx.schemas.api.telemetry import ProfileRequest
from phalanx.schemas.wire import supervision as wire

pytestmark = pytest.mark.integration


def report(node, request):
    return wire.ProfileReport(
        seq=node.next_seq(),
        generation=0,
        request=request,
        at=node.now(),
        first_step=9,
        splits=[{"rank": 0, "steps": 20, "step_s": 0.1, "data_s": 0.04, "busy": None}],
        finding="input-bound",
        said="rank 0 waits",
        advice="more workers",
        trace="/c/t.json.gz",
    )


def test_a_profile_is_asked_for_answered_and_kept(rig):
    num = rig.submit()
    rig.turn()
    node = rig.supervisor(num)
    node.ready()
    seen = node.started()
    assert seen.profile is None
    asked = rig.client.ask_profile(num, ProfileRequest(steps=5, traced=1, extras=["nvtx"]))
    orders = node.sync().orders
    assert (orders.action, orders.version != seen.version) == (Action.RUN, True)
    assert orders.profile == wire.ProfileOrder(request=1, steps=5, traced=1, extras=["nvtx"])
    assert rig.client.profiles(num).profiles == []
    node.sync(report(node, 1))
    (found,) = rig.client.profiles(num, asked=asked, wait_s=5).profiles
    assert found.answers == (1, 0, 1) and found.splits[0].data_s == 0.04
    assert rig.client.ask_profile(num, ProfileRequest()).request == 2
    assert rig.job(num).state == "running"
    rig.check_log(num)


def test_the_next_generation_begins_without_a_request(rig):
    num = rig.submit()
    rig.turn()
    node = rig.supervisor(num)
    node.ready()
    node.started()
    rig.client.ask_profile(num, ProfileRequest())
    node.failed()
    assert node.ended(0, "failed").generation == 1
    assert node.sync().orders.profile is None
    rig.check_log(num)


def test_where_nothing_runs_and_for_senseless_wishes_there_is_an_answer(rig):
    with pytest.raises(NotFound):
        rig.client.ask_profile(7, ProfileRequest())
    num = rig.submit()
    with pytest.raises(Conflict, match="no rank of j-1 runs"):
        rig.client.ask_profile(num, ProfileRequest())
    with pytest.raises(UserError, match="steps must be 1 to"):
        rig.client.ask_profile(num, ProfileRequest(steps=0))
    with pytest.raises(UserError, match="'cpu' must be one of"):
        rig.client.ask_profile(num, ProfileRequest(extras=["cpu"]))
