"""What jobs keep in stores has a cost from the commit of a checkpoint to its removal."""

from __future__ import annotations

from decimal import Decimal

import pytest

from integration.rig import Rig, ScriptedSupervisor
from phalanx.core.cost.ledger import DAY_US
from phalanx.errors import UserError
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.cost import report as cost_reports
from phalanx.services.cost.report import DAYS_AT_ONCE, storage_step
from phalanx.store.storage import objects

pytestmark = pytest.mark.integration
HOUR, DAY = 3600, 86_400
GB = 10**9
S3 = "s3://ckpt/vision"


@pytest.fixture
def supervisor(rig: Rig) -> ScriptedSupervisor:
    num = rig.submit(checkpoint={"store": S3})
    rig.turn()
    one = rig.supervisor(num)
    one.ready()
    one.started()
    return one


def prices(rig: Rig) -> None:
    found = [
        PriceRequest(kind="storage", store="s3://ckpt", usd=Decimal(3)),
        PriceRequest(kind="transfer", store="s3://ckpt", direction="read", usd=Decimal("0.09")),
    ]
    assert len(rig.client.costs.set_prices(found)) == 2


def commit(one: ScriptedSupervisor, step: int, gigabytes: int) -> None:
    more = {"size_bytes": gigabytes * GB, "took_s": 1.0, "metrics": {}, "epoch": 0}
    seq = one.next_seq()
    path = f"/c/step-{step}"
    made = wire.CheckpointReport(seq=seq, generation=0, at=one.now(), step=step, path=path, **more)
    one.sync(made)


def upload(one: ScriptedSupervisor, step: int, gigabytes: int) -> None:
    more = {"seq": one.next_seq(), "generation": 0, "at": one.now()}
    size = gigabytes * GB
    name = f"step-{step}"
    one.sync(wire.CheckpointCopyReport(name=name, state="stored", size_bytes=size, **more))


def remove(one: ScriptedSupervisor, step: int) -> None:
    seq = one.next_seq()
    one.sync(wire.CheckpointRemovedReport(seq=seq, generation=0, path=f"/c/step-{step}"))


def test_checkpoints_accrue_cost_while_they_are_kept(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    prices(rig)
    commit(supervisor, 1, 10)
    upload(supervisor, 1, 10)
    upload(supervisor, 1, 10)  # said again: nothing changes
    rig.clock.advance(3 * DAY)
    storage_step(rig.platform, rig.clock.now())
    commit(supervisor, 2, 20)
    rig.clock.advance(2 * DAY)
    remove(supervisor, 1)
    rig.clock.advance(DAY)
    reports = []
    for _ in range(2):  # before and after it is settled
        found = rig.client.costs.report("store")
        reports.append(found)
        storage_step(rig.platform, rig.clock.now())
    assert reports[0] == reports[1]
    by_store = {one.key: one.cost.storage for one in found.groups}
    far, near = by_store[S3], by_store["nodes"]
    assert far is not None and near is not None
    # 10 GB for 5 of 30 days, at 3 USD.
    assert far.storage_usd == 5 and far.gb_months == pytest.approx(Decimal(5) / 3)
    assert (far.kept_bytes, far.uploaded_bytes, far.transfer_usd) == (0, 10 * GB, None)
    assert near.kept_bytes == 20 * GB and near.storage_usd is None
    assert near.gb_months == pytest.approx((10 * 5 + 20 * 3) / Decimal(30))
    cost = rig.job(supervisor.ref.job).cost
    assert cost is not None and cost.storage is not None
    assert cost.storage == found.total.storage
    for by in ("project", "user", "job"):
        report = rig.client.costs.report(by)
        assert report.total.storage == found.total.storage, by
        assert report.groups[0].cost.storage == found.total.storage, by
    in_time = rig.client.costs.report("day")
    stored = [one.cost.storage for one in in_time.groups if one.cost.storage is not None]
    assert sum(one.storage_usd or 0 for one in stored) == 5
    assert in_time.total.storage is not None and in_time.total.storage.kept_bytes == 0
    assert rig.client.costs.report("pool").total.storage is None
    assert rig.client.costs.report("store", user="eve").groups == []


def test_advice_has_the_money_of_many_kept_checkpoints(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    for step in range(1, 26):
        commit(supervisor, step, 10)
        upload(supervisor, step, 10)
    (found,) = [one for one in rig.client.costs.advice() if one.rule == "checkpoints"]
    assert (found.usd, found.size_bytes) == (None, 50 * GB)
    prices(rig)
    (found,) = [one for one in rig.client.costs.advice() if one.rule == "checkpoints"]
    # 250 GB at 3 USD a month, of which 5 of 25 checkpoints are too many.
    assert found.usd == 150
    assert found.evidence == "25 checkpoints are kept, for 750.00 USD a month"


def test_a_quarantined_checkpoint_is_kept_no_longer(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    commit(supervisor, 1, 10)
    rig.clock.advance(HOUR)
    seq = supervisor.next_seq()
    found = {"path": "/c/step-1", "message": "a digest differs"}
    supervisor.sync(wire.QuarantinedReport(seq=seq, generation=0, **found))
    before = rig.client.costs.report("store").groups[0].cost.storage
    rig.clock.advance(HOUR)
    after = rig.client.costs.report("store").groups[0].cost.storage
    assert before == after and after is not None and after.kept_bytes == 0


def test_output_is_kept_in_the_store_logs(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    supervisor.log(0, b"x" * 1000)
    storage_step(rig.platform, rig.clock.now())
    rig.clock.advance(HOUR)
    supervisor.log(1000, b"y" * 500)
    for _ in range(2):
        rig.clock.advance(2 * HOUR)
        storage_step(rig.platform, rig.clock.now())
    (found,) = rig.client.costs.report("store").groups
    assert found.key == "logs" and found.cost.storage is not None
    assert found.cost.storage.kept_bytes == 1500
    hours = found.cost.storage.gb_months * GB * 30 * 24
    # The larger size counts from the step that sees it.
    assert hours == pytest.approx(1000 * 3 + 1500 * 2)


def test_a_price_of_storage_cannot_begin_in_what_is_settled(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    commit(supervisor, 1, 10)
    began = rig.clock.now()
    rig.clock.advance(DAY)
    storage_step(rig.platform, rig.clock.now())
    from phalanx.schemas.api.body import at_of

    late = PriceRequest(kind="storage", usd=Decimal(1), valid_from=at_of(began))
    with pytest.raises(UserError, match="settled costs never change"):
        rig.client.costs.set_prices([late])
    with pytest.raises(UserError, match="names a store only"):
        rig.client.costs.set_prices([PriceRequest(kind="storage", pool="gpu", usd=Decimal(1))])
    with pytest.raises(UserError, match="names no store"):
        rig.client.costs.set_prices([PriceRequest(store="s3://a", usd=Decimal(1))])


def test_a_long_time_is_settled_in_transactions_of_a_few_days(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    prices(rig)
    commit(supervisor, 1, 10)
    upload(supervisor, 1, 10)
    ends = [rig.clock.now()]
    rig.clock.advance(34 * DAY)
    expected = rig.client.costs.report("store")
    more = True
    while more:
        more = storage_step(rig.platform, rig.clock.now())
        ends.append(rig.store.view(objects.settled_to))
        assert ends[-2] < ends[-1] <= ends[-2] + DAYS_AT_ONCE * DAY_US
        # What is not settled yet is computed: reports say the same all the time.
        assert rig.client.costs.report("store") == expected
    assert len(ends) == 18 and ends[-1] == rig.clock.now()
    assert storage_step(rig.platform, rig.clock.now()) is False


def test_a_transaction_settles_the_begins_of_a_few_objects(
    rig: Rig, supervisor: ScriptedSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_reports, "OBJECTS_AT_ONCE", 3)
    begins, ends = [], []
    for step in range(10):
        rig.clock.advance(60)
        begins.append(rig.clock.now())
        commit(supervisor, step, 1)
    for step in range(8):
        rig.clock.advance(60)
        ends.append(rig.clock.now())
        remove(supervisor, step)
    rig.clock.advance(HOUR)
    expected = rig.client.costs.report("store")
    begin, more = begins[0], True
    while more:
        more = storage_step(rig.platform, rig.clock.now())
        end = rig.store.view(objects.settled_to)
        for times in (begins, ends):
            assert sum(begin < at < end for at in times) <= 3
        begin = end
    assert begin == rig.clock.now()
    assert rig.client.costs.report("store") == expected
