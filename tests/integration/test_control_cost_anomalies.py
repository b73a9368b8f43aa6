"""Days that cost much more than expected, from rows of the ledger to the API, the log and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs.cost import anomalies as verb
from phalanx.core.cost.anomalies import AnomalyLimits
from phalanx.core.cost.ledger import DAY_US, Account, AccountRow
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.errors import NotFound, UserError
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.server.observe.exposition import Exposition
from phalanx.services.cost.anomalies import AnomalyConfig, anomalies_step
from phalanx.services.cost.report import fold_step
from phalanx.store.cost import rows
from phalanx.store.cost.rows import CostOwner, CostRow
from phalanx.store.tables import job_labels

pytestmark = pytest.mark.integration
CONFIG = AnomalyConfig(AnomalyLimits(10 * NANO, 24 * HOUR_US), ("team",))


def today(rig: Rig) -> int:
    return rig.clock.now() // DAY_US


def put(rig: Rig, day: int, job: int, usd: float, *, owner: str = "ada", lost: int = 0) -> None:
    """A row of the ledger: slot-hours as many as US dollars, `lost` of them to failures."""
    hours = round(usd * HOUR_US)
    amounts = (
        (Account.PRODUCTIVE, hours - lost * HOUR_US),
        (Account.LOST_TO_FAILURE, lost * HOUR_US),
    )
    begin = day * DAY_US
    row = AccountRow(begin, begin + HOUR_US, 0, 1, tuple(sorted(amounts)))
    who = CostOwner(job, "vision", owner, None, None)
    cost = CostRow(who, 1, "gpu", None, row, round(usd * NANO), "h100")
    rig.store.transact(lambda tx: rows.add_many(tx, [cost]))


def six_weeks(rig: Rig, usd: float = 100) -> None:
    for back in range(42, 0, -1):
        put(rig, today(rig) - back, 1 + back % 3, usd)
    fold_step(rig.platform)


def step(rig: Rig) -> None:
    anomalies_step(rig.platform, CONFIG, rig.clock.now())


def labelled(rig: Rig, job: int, team: str) -> None:
    row = {"job": job, "name": "team", "value": team}
    rig.store.transact(lambda tx: tx.conn.execute(job_labels.insert(), row))


def test_an_expensive_day_is_told_once_with_what_changed_most(rig: Rig) -> None:
    six_weeks(rig)
    labelled(rig, 77, "nlp")
    step(rig)
    assert rig.client.costs.anomalies() == []
    put(rig, today(rig), 77, 260, lost=200)
    for _ in range(3):  # also for a control plane that starts anew
        step(rig)
    (found,) = rig.client.costs.anomalies()
    assert (found.scope, found.name, found.state) == ("project", "vision", "open")
    assert (found.usd, found.expected_usd, found.extra_usd) == (260, 100, 160)
    assert found.also == ["user ada", "pool gpu"]
    cause = found.cause
    assert (cause.job, cause.job_extra_usd, cause.pool) == (77, 260, "gpu")
    assert (cause.account, cause.account_extra_slot_hours) == ("lost_to_failure", 200)
    assert (
        "project vision used 260.00 USD, 160.00 USD more than the expected 100.00" in found.message
    )
    assert rig.client.costs.report("project").total.usd == 4460
    # The day goes on: the same anomaly has more.
    put(rig, today(rig), 77, 40)
    fold_step(rig.platform)
    step(rig)
    (grown,) = rig.client.costs.anomalies()
    assert (grown.id, grown.extra_usd, grown.found_at) == (found.id, 200, found.found_at)


def test_it_is_open_until_a_whole_day_is_as_expected(rig: Rig) -> None:
    six_weeks(rig)
    put(rig, today(rig), 77, 300)
    step(rig)
    (found,) = rig.client.costs.anomalies()
    seen = rig.client.costs.acknowledge(found.id)
    assert (seen.state, seen.acknowledged_by != "") == ("acknowledged", True)
    assert rig.client.costs.acknowledge(found.id) == seen
    rig.clock.advance(86_400)
    put(rig, today(rig), 1, 100)
    step(rig)  # this day may still become an anomaly
    assert [one.state for one in rig.client.costs.anomalies()] == ["acknowledged"]
    rig.clock.advance(86_400)
    step(rig)
    assert rig.client.costs.anomalies() == []
    (closed,) = rig.client.costs.anomalies(state="all")
    assert closed.state == "closed" and closed.closed_at is not None
    step(rig)  # no day is judged again
    assert rig.client.costs.anomalies(state="all") == [closed]
    with pytest.raises(UserError, match="is closed"):
        rig.client.costs.acknowledge(found.id)
    with pytest.raises(NotFound, match="no anomaly 9"):
        rig.client.costs.acknowledge(9)


def test_days_of_a_stop_of_the_control_plane_are_judged_later(rig: Rig) -> None:
    six_weeks(rig)
    step(rig)
    put(rig, today(rig), 5, 100)
    rig.clock.advance(86_400)
    put(rig, today(rig), 5, 400)
    for _ in range(2):
        rig.clock.advance(86_400)
        put(rig, today(rig), 5, 100)
    step(rig)
    (found,) = rig.client.costs.anomalies(state="all")
    assert (found.state, found.extra_usd) == ("closed", 300)
    assert found.first_day == found.last_day


def test_a_live_job_is_warned_and_counts_before_it_has_rows(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    six_weeks(rig, usd=20)
    rig.client.costs.set_prices([PriceRequest(usd=Decimal(30))])
    num = rig.submit(labels={"team": "vision"})
    rig.turn(1)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    step(rig)
    assert rig.client.costs.anomalies() == []
    rig.clock.advance(3600)
    step(rig)
    # 3 slots for an hour: the user has used 90 USD, where 20 are expected.
    (found,) = rig.client.costs.anomalies()
    assert (found.scope, found.name, found.cause.job) == ("user", "ada", num)
    assert found.extra_usd == pytest.approx(Decimal(70), abs=Decimal("0.1"))
    (warning,) = [one for one in rig.client.events(num).events if one.kind == "warned"]
    assert warning.data["anomaly"] == found.id and "user ada used" in warning.data["message"]
    assert sum("more than the expected" in one.message for one in caplog.records) == 1
    rig.check_log(num)
    text = Exposition(rig.context).scrape(rig.clock.now()).decode()
    assert 'phalanx_cost_anomalies{state="open"} 1.0' in text
    assert 'phalanx_cost_anomaly_extra_usd{name="ada",scope="user",state="open"} 70' in text


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(verb, "connected", lambda ctx: nullcontext(rig.client))

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, ["cost", "anomalies", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return invoke


def test_the_verb_lists_and_acknowledges(rig: Rig, run: Callable[..., str]) -> None:
    assert "every day is as expected" in run()
    six_weeks(rig)
    put(rig, today(rig), 77, 260)
    step(rig)
    said = run()
    assert all(one in said for one in ("project vision", "160.00 USD", "open", "j-77 +260.00 USD"))
    assert "anomaly 1 is acknowledged: project vision used" in run("--ack", "1")
    assert '"state": "acknowledged"' in run("--json")
