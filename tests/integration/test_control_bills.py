"""Bills beside the ledger: imported once whatever is repeated, compared, removed, with rights and audit."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs.cost import bills as verbs
from phalanx.core.cost.ledger import DAY_US, Account, AccountRow
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.errors import Conflict, NotFound, UserError
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.schemas.api.money.bills import BillLineRequest
from phalanx.store.cost import rows
from phalanx.store.cost.rows import CostOwner, CostRow
from phalanx.store.storage import objects

pytestmark = pytest.mark.integration


def month_begin(rig: Rig) -> datetime:
    at = datetime.fromtimestamp(rig.clock.now() / 1e6, UTC)
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def a_line(
    rig: Rig, id: str, usd: str, day: int = 0, days: int = 1, **changes: str
) -> BillLineRequest:
    begin = month_begin(rig) + timedelta(days=day)
    values = {"kind": "slot", "place": "gpu", "slot_type": "h100"} | changes
    end = begin + timedelta(days=days)
    return BillLineRequest(id=id, begin=begin, end=end, usd=Decimal(usd), **values)


def used(
    rig: Rig, day: int, hours: float, usd: float, pool: str = "gpu", kind: str = "h100"
) -> None:
    """A settled row of the ledger in the month."""
    begin = int(month_begin(rig).timestamp()) * 1_000_000 + day * DAY_US
    row = AccountRow(begin, begin + HOUR_US, 0, 1, ((Account.PRODUCTIVE, round(hours * HOUR_US)),))
    who = CostOwner(1, "vision", "ada", None, None)
    cost = CostRow(who, 1, pool, None, row, round(usd * NANO), kind)
    rig.store.transact(lambda tx: rows.add_many(tx, [cost]))


def month_of(rig: Rig) -> str:
    return month_begin(rig).strftime("%Y-%m")


def test_a_line_counts_once_whatever_is_repeated(rig: Rig) -> None:
    costs = rig.client.costs
    lines = [a_line(rig, f"l-{index}", f"{index}.000000001") for index in range(50)]
    first = costs.import_bill("november", lines)
    assert (first.new, first.known) == (50, 0)
    assert first.bill.usd == Decimal("1225.000000050")
    shuffled = list(lines)
    random.Random(3).shuffle(shuffled)
    again = costs.import_bill("november", [*shuffled[:30], shuffled[0], a_line(rig, "new", "1")])
    assert (again.new, again.known, again.bill.num_lines) == (1, 30, 51)
    # Neither does it in a bill of another name.
    other = costs.import_bill("copy", lines)
    assert (other.new, other.known, other.bill.usd) == (0, 50, 0)
    assert [one.name for one in costs.bills()] == ["copy", "november"]
    with pytest.raises(Conflict, match="another line with the id 'l-3' is stored"):
        costs.import_bill("november", [a_line(rig, "fresh", "1"), a_line(rig, "l-3", "9")])
    with pytest.raises(Conflict, match="two different lines have the id 'x'"):
        costs.import_bill("november", [a_line(rig, "x", "1"), a_line(rig, "x", "2")])
    assert sum(one.usd for one in costs.bills()) == Decimal("1226.000000050")
    costs.remove_bill("november")
    with pytest.raises(NotFound, match="no bill 'november'"):
        costs.remove_bill("november")
    assert costs.import_bill("november", lines).new == 50


def test_a_month_is_compared_by_pool_slot_type_and_store(rig: Rig) -> None:
    costs, month = rig.client.costs, month_of(rig)
    used(rig, 0, 10, 20)
    used(rig, 1, 10, 20)
    used(rig, 1, 5, 5, kind="a100")
    used(rig, 2, 4, 8, pool="cpu", kind="")
    used(rig, 40, 100, 100)  # of the next month
    lines = [
        a_line(rig, "1", "50", days=2),
        a_line(rig, "2", "5.01", day=1, slot_type="a100"),
        a_line(rig, "3", "7", place="elsewhere"),
        a_line(rig, "4", "3", kind="other", place="", slot_type=""),
        a_line(rig, "5", "10", day=-1, days=2, place="", slot_type=""),
    ]
    costs.import_bill("november", lines)
    found = costs.reconcile(month)
    shown = {
        (one.kind, one.place, one.slot_type): (one.billed_usd, one.ledger_usd, one.verdict)
        for one in found.rows
    }
    assert shown == {
        ("slot", "", ""): (5, 0, "unexplained"),  # the day before is of another month
        ("slot", "cpu", ""): (0, 8, "under"),
        ("slot", "elsewhere", "h100"): (7, 0, "unexplained"),
        ("slot", "gpu", "a100"): (Decimal("5.01"), 5, "matched"),
        ("slot", "gpu", "h100"): (50, 40, "over"),
        ("other", "", ""): (3, 0, "unexplained"),
    }
    assert (found.billed_usd, found.ledger_usd) == (Decimal("70.01"), 53)
    assert sum(found.by_verdict.values()) == found.billed_usd
    (price,) = found.prices
    assert price.command == "phalanx prices set slot 2.5 --pool gpu --slot-type h100"
    by_day = costs.reconcile(month, by="day", tolerance=0)
    assert (by_day.billed_usd, by_day.ledger_usd) == (found.billed_usd, found.ledger_usd)
    h100 = [one for one in by_day.rows if (one.place, one.slot_type) == ("gpu", "h100")]
    assert [(one.billed_usd, one.ledger_usd) for one in h100] == [(25, 20), (25, 20)]
    assert by_day.prices[0] == price
    with pytest.raises(UserError, match="'soon' is no month"):
        costs.reconcile("soon")


def test_live_jobs_and_stored_bytes_are_in_the_comparison(rig: Rig) -> None:
    costs = rig.client.costs
    costs.set_prices(
        [
            PriceRequest(usd=Decimal(2)),
            PriceRequest(kind="storage", store="s3://ckpt", usd=Decimal("0.02")),
            PriceRequest(kind="transfer", store="s3://ckpt", usd=Decimal("0.1")),
        ]
    )
    num = rig.submit()
    rig.turn(1)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    keep = rig.clock.now()
    size = 3000 * 10**9
    rig.store.transact(lambda tx: objects.keep(tx, num, "s3://ckpt/a/1", keep, size=size))
    rig.clock.advance(3600)
    month = month_of(rig)
    costs.import_bill(
        "b",
        [
            a_line(rig, "1", "12", place="local", slot_type="", days=28),
            a_line(rig, "2", "450", kind="transfer", place="s3://ckpt", slot_type="", days=28),
        ],
    )
    found = {(one.kind, one.place): one for one in costs.reconcile(month).rows}
    slots = found["slot", "local"]
    assert slots.quantity == pytest.approx(3, abs=0.01)
    assert slots.ledger_usd == pytest.approx(Decimal(6), abs=Decimal("0.01"))
    assert found["storage", "s3://ckpt"].ledger_usd == pytest.approx(
        Decimal(3000) * Decimal("0.02") / 720, abs=Decimal("0.001")
    )
    moved = found["transfer", "s3://ckpt"]
    assert (moved.ledger_usd, moved.quantity, moved.verdict) == (300, 3000, "over")
    commands = [one.command for one in costs.reconcile(month).prices]
    assert "phalanx prices set transfer 0.15 --store s3://ckpt" in commands


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(verbs, "connected", lambda ctx: nullcontext(rig.client))

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, ["cost", *words], catch_exceptions=True)
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return invoke


def test_the_verbs_import_list_compare_and_remove(
    rig: Rig, run: Callable[..., str], tmp_path: Path
) -> None:
    begin = month_begin(rig)
    used(rig, 0, 1000, 2000)
    days = [f"{begin:%Y-%m-%d},{index}.5,slot,gpu,h100\n" for index in range(1, 1501)]
    file = tmp_path / "november.csv"
    file.write_text("day,usd,kind,pool,slot_type\n" + "".join(days))
    assert "slot gpu" in run("import", str(file), "--dry-run") and "no bills" in run("bills")
    assert "november.csv: 1500 new lines, 0 known before" in run("import", str(file))
    assert "0 new lines, 1500 known before" in run("import", str(file), "--name", "other")
    assert all(one in run("bills") for one in ("november.csv", "1500", "1126500.00"))
    said = run("reconcile", "--month", month_of(rig))
    assert all(one in said for one in ("gpu", "h100", "1126500.00", "over", "1000.0 slot-hours"))
    assert "as billed: phalanx prices set slot 1126.5 --pool gpu --slot-type h100" in said
    head, row = run("reconcile", "--month", month_of(rig), "--by", "day", "--csv").splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert (cells["day"], cells["verdict"]) == (f"{begin:%Y-%m-%d}", "over")
    assert Decimal(cells["difference_usd"]) == 1_124_500
    assert '"by_verdict"' in run("reconcile", "--month", month_of(rig), "--json")
    # A corrected bill replaces the old one.
    file.write_text(f"id,day,usd,kind,pool,slot_type\n1,{begin:%Y-%m-%d},2000,slot,gpu,h100\n")
    assert "1 new lines" in run("import", str(file), "--replace")
    assert "matched" in run("reconcile", "--month", month_of(rig))
    file.write_text(f"id,day,usd,kind,pool,slot_type\n1,{begin:%Y-%m-%d},2,slot,gpu,h100\n")
    with pytest.raises(Conflict, match="another line with the id '1'"):
        run("import", str(file))
    run("bills", "rm", "november.csv")
    run("bills", "rm", "other")
    assert "no bills" in run("bills")


def test_a_bad_line_imports_nothing(rig: Rig, run: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "bill.csv"
    good = "2026-11-01,1,slot,gpu,USD\n" * 1200
    file.write_text(f"day,usd,kind,pool,currency\n{good}2026-11-01,1,slot,gpu,EUR\n")
    with pytest.raises(UserError, match=r"bill\.csv, line 1202: the currency is 'EUR'"):
        run("import", str(file))
    assert rig.client.costs.bills() == []
    with pytest.raises(UserError, match="cannot name a bill"):
        run("import", str(file), "--name", "a/b")
