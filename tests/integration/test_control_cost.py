"""The cost ledger of real job lives: it adds up to the time that slots were held, whatever happened."""

from __future__ import annotations

import pytest

from integration.rig import Rig, spec
from phalanx.core.cost.ledger import Account
from phalanx.errors import SpecInvalid, UserError
from phalanx.schemas.api.jobs import ChangeRequest, CloneRequest, SubmitRequest
from phalanx.schemas.api.schedules import PutScheduleRequest
from phalanx.schemas.api.templates import SubmitTemplateRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition
from phalanx.services.cost.budgets import budgets_step
from phalanx.services.cost.report import fold_step
from phalanx.services.ledger.settle import live_rows
from phalanx.store import jobs
from phalanx.store.cost import days, rows
from phalanx.store.tables import checkpoints

pytestmark = pytest.mark.integration


def ledger(rig: Rig, num: int) -> list[rows.CostRow]:
    now = rig.clock.now()

    def work(tx):
        live = live_rows(tx, [jobs.load(tx, num)], now)
        return [*rows.of_job(tx, num), *live.get(num, [])]

    return rig.store.view(work)


def spent(rig: Rig, num: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in ledger(rig, num):
        for account, amount in one.row.amounts:
            found[account.value] = found.get(account.value, 0) + amount / 1e6
    return found


def launch(rig: Rig, num: int, attempt: int = 1):
    rig.turn(4)
    supervisor = rig.supervisor(num, attempt=attempt)
    supervisor.ready()
    rig.clock.advance(1)
    supervisor.started()
    return supervisor


def interrupted_job(rig: Rig) -> tuple[int, int]:
    """A job that a failure and then an urgent job have interrupted, and that urgent job."""
    num = rig.submit(priority=10)
    supervisor = launch(rig, num)
    for step in range(1, 12):
        rig.clock.advance(10)
        supervisor.step(0, step)
    rig.clock.advance(3)
    supervisor.failed()
    supervisor.ended(0, "failed", step=11)
    rig.clock.advance(2)
    supervisor.started(1)
    for step in range(8, 16):
        rig.clock.advance(10)
        supervisor.step(1, step)
    urgent = rig.submit(priority=90)
    rig.turn(1)
    assert rig.job(num).state == "stopping"
    rig.clock.advance(6)
    supervisor.ended(1, "stopped", step=15)
    supervisor.leave()
    rig.turn(1)
    return num, urgent


def held_us(rig: Rig, num: int) -> int:
    return round(rig.store.view(lambda tx: jobs.load(tx, num)).job.attained_slot_s * 1e6)


def test_failures_and_preemptions_add_up_to_the_time_that_slots_were_held(rig: Rig) -> None:
    num, urgent = interrupted_job(rig)
    other = launch(rig, urgent)
    found = spent(rig, num)
    queued = found.pop("queued")
    assert round(sum(found.values()) * 1e6) == held_us(rig, num)
    # 3 slots: steps 8 to 11 were made twice, and the failure cost 3 s, 2 s and the first step again.
    assert (found["redone"], found["lost_to_failure"]) == (90, 45)
    assert found["productive"] == 3 * (100 + 40)
    assert found["lost_to_preemption"] == 3 * 8
    assert queued == pytest.approx(3 * (4 + 5))
    other.ended(0, "succeeded", step=1)
    other.leave()
    rig.turn()
    last = launch(rig, num, attempt=2)
    for step in (14, 15):
        rig.clock.advance(10)
        last.step(0, step)
    view = rig.job(num).cost
    assert view is not None and view.held > held_us(rig, num) / 1e6
    last.ended(0, "succeeded", step=15)
    last.leave()
    rig.turn(1)
    everything = ledger(rig, num)
    exact = sum(one.row.total for one in everything if one.row.generation is not None)
    assert exact == held_us(rig, num)
    assert {one.attempt for one in everything} == {1, 2}
    assert dict(everything[-1].row.amounts)[Account.REDONE] == 30_000_000


def test_reports_by_group_add_up_to_the_same_total(rig: Rig) -> None:
    num, urgent = interrupted_job(rig)
    costs = rig.client.costs
    by_job = costs.report("job")
    assert [one.key for one in by_job.groups] == [str(num), str(urgent)]
    ours, view = by_job.groups[0].cost, rig.job(num).cost
    assert ours == view and ours.wasted == 90 + 45 + 24
    for by in ("project", "user", "study", "pool", "day", "week", "month", "label:team"):
        found = costs.report(by)
        assert found.total == by_job.total, by
        assert sum(one.cost.held for one in found.groups) == pytest.approx(found.total.held), by
    ahead = costs.report("month").forecast
    assert ahead is not None and ahead.used_slot_hours == by_job.total.held / 3600
    assert costs.report("project").forecast is None
    assert costs.report("day").groups[0].key == rig.job(num).submitted_at.strftime("%Y-%m-%d")
    groups = ("project", "user", "pool", "day", "job", "study", "label:team")
    before = {by: costs.report(by) for by in groups}
    for _ in range(2):  # rows are folded once
        fold_step(rig.platform)
        assert {by: costs.report(by) for by in before} == before
    few = costs.report("job", limit=1)
    assert few.groups == by_job.groups[:1] and few.total == by_job.total
    assert rig.store.view(days.folded) > 0
    assert costs.report("job", job=urgent).total == by_job.groups[1].cost
    assert costs.report("job", since=rig.job(num).submitted_at, user="ada").total == by_job.total
    assert costs.report("job", user="eve").groups == []
    with pytest.raises(UserError, match="no group 'color'"):
        costs.report("color")


def test_advice_names_a_job_that_held_slots_without_steps(rig: Rig) -> None:
    num = rig.submit()
    supervisor = launch(rig, num)
    assert rig.client.costs.advice() == []
    rig.clock.advance(10)
    supervisor.step(0, 1)
    rig.clock.advance(10)
    supervisor.step(0, 2)
    rig.clock.advance(3600)
    (found,) = rig.client.costs.advice(project="default")
    assert (found.rule, found.job, found.usd) == ("idle", num, None)
    assert found.slot_hours == pytest.approx(3, rel=0.02)
    assert rig.client.costs.advice(user="eve") == []
    reports = [{"path": f"/c/{step}", "step": step} for step in range(21)]
    rig.store.transact(
        lambda tx: tx.conn.execute(
            checkpoints.insert(),
            [
                {
                    "id": index,
                    "job": num,
                    "attempt": 1,
                    "generation": 0,
                    "size_bytes": 2**30,
                    "metrics": {},
                    "created_at": 0,
                    "state": "valid",
                    **one,
                }
                for index, one in enumerate(reports, 1)
            ],
        )
    )
    told = {one.rule: one for one in rig.client.costs.advice()}
    assert told["checkpoints"].size_bytes == 2**30
    assert rig.client.costs.advice(limit=1) == [found]


def test_metrics_give_the_cost_of_a_token_and_name_slots_that_were_not_busy(rig: Rig) -> None:
    from decimal import Decimal

    from phalanx.schemas.api.cost_prices import PriceRequest

    costs = rig.client.costs
    full = [PriceRequest(usd=Decimal(2)), PriceRequest(usd=Decimal(1), spot=True)]
    costs.set_prices(full)
    num = rig.submit()
    supervisor = launch(rig, num)
    for step in range(1, 5):
        rig.clock.advance(900)
        supervisor.beat = wire.Heartbeat(generation=0, step=step, epoch=step // 2, phase="running")
        values = {"tokens": 500.0 * step, "gpu_utilization_percent": 10.0 * step}
        point = wire.MetricPoint(rank=0, step=step, at=supervisor.now(), values=values)
        seq = supervisor.next_seq()
        supervisor.sync(wire.MetricsReport(seq=seq, generation=0, points=[point]))
    view = rig.job(num)
    units = {one.unit: one for one in view.unit_costs}
    assert (units["epoch"].count, units["step"].count, units["token"].count) == (2, 4, 2000)
    assert view.cost is not None and view.cost.usd is not None
    assert units["token"].usd == pytest.approx(view.cost.usd / 2000)
    told = {one.rule: one for one in costs.advice()}
    assert "25 %" in told["utilisation"].evidence and "spot" not in told
    at = {"step": 4, "epoch": 2, "path": "/c/4", "size_bytes": 9, "took_s": 1.0, "metrics": {}}
    saved = wire.CheckpointReport(
        seq=supervisor.next_seq(), generation=0, at=supervisor.now(), **at
    )
    supervisor.sync(saved)
    told = {one.rule: one for one in costs.advice()}
    assert told["spot"].usd == pytest.approx(view.cost.usd / 2)


def test_a_cancelled_wait_is_in_the_ledger(rig: Rig) -> None:
    rig.submit()
    rig.turn()
    num = rig.submit()
    rig.turn(5)
    rig.client.stop(num)
    assert spent(rig, num) == {"queued": 15}
    rig.turn(100)
    assert spent(rig, num) == {"queued": 15}


def test_a_budget_warns_then_holds_then_pauses_and_goes_on_when_raised(rig: Rig) -> None:
    from phalanx.schemas.api.cost import SetBudgetRequest

    costs = rig.client.costs
    hour = SetBudgetRequest(slot_hours=1)
    assert costs.set_budget("project", "default", hour).state == "open"
    num = rig.submit()
    supervisor = launch(rig, num)
    alerts = []
    for minutes in (11, 6, 4):  # three slots: 55 %, 85 % and 105 %
        rig.clock.advance(minutes * 60)
        for _ in range(2):  # each alert once, also for a control plane that starts anew
            budgets_step(rig.platform, rig.clock.now())
        (view,) = costs.budgets()
        alerts.append([one.percent for one in view.alerts])
    assert alerts == [[50], [50, 80], [50, 80, 100]] and view.state == "holding"
    said = 'phalanx_budget_used_ratio{name="default",scope="project"} 1.05'
    assert said in Exposition(rig.context).scrape(rig.clock.now()).decode()
    assert rig.job(num).state == "running"
    waiting = rig.submit(resources={"nodes": 1, "slots_per_node": 1})
    rig.turn(1)
    held = rig.job(waiting)
    assert held.state == "queued" and held.pending_reason is not None
    assert held.pending_reason.code == "cost_budget"
    assert "project default has used 105 % of 1 slot-hours" in held.pending_reason.message
    rig.clock.advance(120)
    budgets_step(rig.platform, rig.clock.now())
    assert (rig.job(num).state, rig.job(num).goal) == ("stopping", "pause")
    supervisor.ended(0, "stopped", step=1)
    supervisor.leave()
    rig.turn(1)
    budgets_step(rig.platform, rig.clock.now())
    rig.turn(1)
    view_of = rig.job(num)
    assert (view_of.state, view_of.reason.code) == ("paused", "cost_budget")
    assert rig.job(waiting).state == "queued"
    costs.set_budget("project", "default", SetBudgetRequest(slot_hours=3))
    budgets_step(rig.platform, rig.clock.now())
    rig.turn(1)
    assert {rig.job(num).state, rig.job(waiting).state} == {"starting"}
    rig.check_log(num)
    costs.remove_budget("project", "default")
    assert costs.budgets() == []


def test_the_estimate_of_a_job_is_what_such_jobs_have_used(rig: Rig) -> None:
    from integration.rig import spec
    from phalanx.core.scheduling.model.durations import EDGES, KindKey, size_class
    from phalanx.schemas.api.cost import SetBudgetRequest
    from phalanx.schemas.api.jobs import SubmitRequest

    def ask(**changes: object):
        request = SubmitRequest(spec=spec(**changes), owner="ada")
        return rig.client.submit(request, dry_run=True).estimate

    unknown = ask()
    assert unknown is not None and (unknown.p50, unknown.p90) == (None, None)
    assert unknown.basis == "nothing is known of such jobs yet"
    own = ask(max_duration="2h", budget={"slot_hours": 5})
    assert own is not None
    assert own.warnings == ["the job may exceed its own budget of 5 slot-hours, and pause at 110 %"]
    assert ask(max_duration="2h", budget={"slot_hours": 7}).warnings == []
    limited = ask(max_duration="2h")
    assert limited is not None and limited.p90 is not None
    assert (limited.p90.slot_hours, limited.basis) == (6, "max_duration")
    history = rig.platform.scheduler_cache.host.history
    for index in range(20):
        used = 3600.0 if index < 16 else 36_000.0
        history.observe(KindKey("default", "ada/digits", size_class(3)), used)
    known = ask()
    assert known is not None and known.p50 is not None and known.p90 is not None
    assert 1 <= known.p50.slot_hours <= 1.4 and 9 <= known.p90.slot_hours <= 14
    assert known.p50.duration_s == pytest.approx(known.p50.slot_hours * 1200)
    assert known.p90.slot_hours * 3600 in [pytest.approx(edge) for edge in EDGES]
    assert "20 ended jobs" in known.basis and known.warnings == []
    rig.client.costs.set_budget("user", "ada", SetBudgetRequest(slot_hours=5))
    answer = rig.client.submit(SubmitRequest(spec=spec(), owner="ada"))
    assert answer.job is not None and answer.estimate is not None
    assert answer.estimate.p50 == known.p50
    (said,) = answer.estimate.warnings
    assert said == "the job may exceed the budget of user ada: 0 % of 5 slot-hours are used"
    rig.client.costs.set_budget("user", "ada", SetBudgetRequest(slot_hours=0))
    full = ask()
    assert full is not None and full.warnings[0].endswith("the job will not start")


def test_prices_are_settled_as_they_were_when_slots_were_held(rig: Rig) -> None:
    from datetime import timedelta
    from decimal import Decimal

    from phalanx.schemas.api.body import at_of
    from phalanx.schemas.api.cost_prices import PriceRequest
    from phalanx.services.ledger.settle import held_by

    costs = rig.client.costs
    first = PriceRequest(kind="slot", pool="local", usd=Decimal("3.6"))
    cores = PriceRequest(kind="cpu", usd=Decimal("0.36"))
    assert [one.unit for one in costs.set_prices([first, cores])] == ["slot-hour", "core-hour"]
    began = rig.clock.now()
    assert costs.set_prices([costs_again(costs, 0), costs_again(costs, 1)]) == []
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 3, "cpus": 4})
    supervisor = launch(rig, num)
    rig.clock.advance(100)
    # Three slots of 1e-3 USD a second, and four cores of 1e-4.
    seconds = (rig.clock.now() - began) / 1e6 - 4
    assert float(rig.job(num).cost.usd) == pytest.approx(0.0034 * seconds, abs=1e-8)
    later = at_of(rig.clock.now()) + timedelta(seconds=50)
    costs.set_prices(
        [PriceRequest(kind="slot", pool="local", usd=Decimal("7.2"), valid_from=later)]
    )
    rig.clock.advance(60)
    supervisor.ended(0, "succeeded", step=1)
    stored = rig.store.view(lambda tx: jobs.load(tx, num))
    holds = held_by(stored, stored.job.attempt)
    supervisor.leave()
    rig.turn(1)
    total = rig.job(num).cost
    before, after = seconds + 50, 11
    assert float(total.usd) == pytest.approx(0.0034 * before + 0.0064 * after, abs=1e-8)
    assert total.held == pytest.approx(3 * (before + after))
    # A later price changes nothing that is settled, and none can begin before its end.
    costs.set_prices([PriceRequest(kind="slot", pool="local", usd=Decimal(100))])
    assert rig.job(num).cost == total and costs.report("project").total == total
    with pytest.raises(UserError, match="is settled, and settled costs never change"):
        costs.set_prices([PriceRequest(kind="slot", usd=Decimal(1), valid_from=at_of(began + 9))])
    assert len(costs.prices(history=True)) == 4 and len(costs.prices()) == 2
    # The rows are what the whole table says of the same times.
    from phalanx.store.cost import prices

    table = rig.store.view(prices.table)
    for one in ledger(rig, num):
        if one.row.generation is not None:
            assert table.nano_usd(holds, one.row.from_at, one.row.to_at) == one.nano_usd > 0


def costs_again(costs, index: int):
    """The request that set a known price."""
    from phalanx.schemas.api.cost_prices import PriceRequest

    known = sorted(costs.prices(), key=lambda one: one.kind != "slot")[index]
    return PriceRequest(
        kind=known.kind, pool=known.pool, usd=known.usd, valid_from=known.valid_from
    )


def test_a_spec_brings_the_budget_of_its_job(rig: Rig) -> None:
    limits = {"usd": 400.5, "slot_hours": 0.01, "pause_at": 150}
    num = rig.submit(budget=limits)
    batch = [SubmitRequest(spec=spec(budget={"usd": 1}, array="0-1"), owner="ada")]
    elements = [one.num for one in rig.client.submit_batch(batch).jobs]
    plain = rig.submit()
    found = {one.name: one for one in rig.client.costs.budgets()}
    assert set(found) == {str(num), *map(str, elements)} and str(plain) not in found
    own = found[str(num)]
    assert (str(own.usd), own.slot_hours, own.pause_percent) == ("400.5", 0.01, 150)
    launch(rig, num)
    rig.clock.advance(60)
    budgets_step(rig.platform, rig.clock.now())
    rig.turn()
    assert rig.job(num).reason.code == "cost_budget"


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "needs a limit: usd, slot_hours or both"),
        ({"usd": -1}, "budget.usd"),
        ({"usd": 1, "pause_at": 50}, "budget.pause_at"),
    ],
)
def test_a_wrong_budget_of_a_spec_is_refused(rig: Rig, budget: dict, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        rig.submit(budget=budget)
    assert rig.client.costs.budgets() == []


def own_budget(rig: Rig, num: int) -> tuple[str, float | None, int]:
    found = rig.job(num).budget
    assert found is not None and (found.scope, found.name) == ("job", str(num))
    return str(found.usd), found.slot_hours, found.pause_percent


def test_jobs_of_clones_templates_and_schedules_have_the_budget_of_the_spec(rig: Rig) -> None:
    limits = {"usd": 4.5, "slot_hours": 2, "pause_at": 150}
    num = rig.submit(budget=limits)
    body = spec(budget=limits | {"usd": "${params.usd}"})
    template = {"schema": 1, "parameters": {"usd": {"type": "float", "default": 4.5}}, "job": body}
    rig.client.templates.put("tune", template)
    made = rig.client.templates.submit("tune", SubmitTemplateRequest(owner="ada"))
    schedule = PutScheduleRequest(spec=spec(budget=limits), cron="0 * * * *", owner="ada")
    rig.client.schedules.put("nightly", schedule)
    run = rig.client.schedules.run("nightly")
    clone = rig.client.clone(num, CloneRequest()).job
    more = rig.client.clone(num, CloneRequest(set={"budget.usd": 9})).job
    assert clone is not None and more is not None and run.job is not None
    for one in (num, clone.num, made.jobs[0].num, run.job):
        assert own_budget(rig, one) == ("4.5", 2, 150)
    assert own_budget(rig, more.num) == ("9", 2, 150)
    assert rig.job(rig.submit()).budget is None
    assert {one.budget for one in rig.client.jobs().jobs} == {None}  # of a single job only


def test_a_changed_budget_counts_at_once(rig: Rig) -> None:
    num = rig.submit(budget={"slot_hours": 0.01})
    launch(rig, num)
    rig.clock.advance(60)
    budgets_step(rig.platform, rig.clock.now())
    assert rig.job(num).reason.code == "cost_budget"
    held = rig.job(num).budget
    assert held is not None and held.state == "pausing" and held.used_percent > 100
    view = rig.client.change(num, ChangeRequest(budget={"slot_hours": 3}))
    assert view.spec is not None and view.spec["budget"]["slot_hours"] == 3
    budgets_step(rig.platform, rig.clock.now())
    found = rig.job(num).budget
    assert found is not None and (found.slot_hours, found.state) == (3, "open")
    assert [one.percent for one in found.alerts] == []  # told anew once they are reached again
    rig.client.change(num, ChangeRequest(budget=None))
    assert rig.job(num).budget is None and rig.client.costs.budgets() == []
    rig.check_log(num)
