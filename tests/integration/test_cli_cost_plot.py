"""The figure of `phalanx cost --plot` and the line of bars, on the routes of a real control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.terminal.cost_plot import CostFigure, write_figure
from phalanx.cli.verbs.cost import plotting, report
from phalanx.core.cost.ledger import DAY_US, Account, AccountRow
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.errors import UserError
from phalanx.store.cost import rows
from phalanx.store.cost.rows import CostOwner, CostRow

pytestmark = pytest.mark.integration
Run = Callable[..., str]
NOW = datetime(2026, 11, 20, 9, tzinfo=UTC)
TODAY = int(NOW.timestamp()) * 1_000_000 // DAY_US


@pytest.fixture
def drawn() -> list[CostFigure]:
    return []


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch, drawn: list[CostFigure]) -> Run:
    monkeypatch.setattr(report, "connected", lambda ctx: nullcontext(rig.client))
    monkeypatch.setattr(report, "_now", lambda: NOW)
    monkeypatch.setattr(plotting, "write_figure", lambda path, shown: drawn.append(shown))

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, ["cost", *words], catch_exceptions=True)
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return invoke


def put(rig: Rig, back: int, project: str, hours: int, usd: int = 0, lost: int = 0) -> None:
    begin = (TODAY - back) * DAY_US
    parts = ((Account.PRODUCTIVE, hours - lost), (Account.LOST_TO_FAILURE, lost))
    amounts = tuple(sorted((one, part * HOUR_US) for one, part in parts if part))
    who = CostOwner(1, project, f"user-of-{project}", None, None)
    row = AccountRow(begin, begin + HOUR_US, 0, 1, amounts)
    cost = CostRow(who, 1, "gpu", None, row, usd * NANO)
    rig.store.transact(lambda tx: rows.add_many(tx, [cost]))


def test_a_figure_has_every_day_by_project_and_account_and_the_rest_of_the_month(
    rig: Rig, run: Run, drawn: list[CostFigure], tmp_path: Path
) -> None:
    for back in range(50):
        if back != 3:
            put(rig, back, "vision", 4, 40, lost=1)
        put(rig, back, "nlp", 1, 10)
    assert "cost.png is written" in run("--plot", str(tmp_path / "cost.png"))
    (shown,) = drawn
    assert (shown.days[0], shown.days[-1], len(shown.days)) == (
        date(2026, 10, 17),
        date(2026, 11, 20),
        35,
    )
    assert (shown.unit, list(shown.projects)) == ("US dollars", ["vision", "nlp"])
    assert shown.projects["vision"][-5:] == [40, 0, 40, 40, 40]
    assert shown.accounts["lost_to_failure"][-4:] == [0, 1, 1, 1]
    assert (shown.ahead[0], shown.ahead[-1]) == (date(2026, 11, 20), date(2026, 11, 30))
    assert shown.expected[0] == 50 and all(
        low < expected < high
        for low, expected, high in zip(shown.low, shown.expected, shown.high, strict=True)
    )
    run("--plot", str(tmp_path / "a.svg"), "--project", "nlp", "--until", "2026-11-10")
    assert list(drawn[1].projects) == ["user-of-nlp"] and not drawn[1].ahead
    assert drawn[1].days[-1] == date(2026, 11, 10)


def test_small_projects_are_one_part_and_slots_without_a_price_count_in_hours(
    rig: Rig, run: Run, drawn: list[CostFigure], tmp_path: Path
) -> None:
    for index in range(9):
        put(rig, 1, f"p{index}", 20 - index)
    run("--plot", str(tmp_path / "cost.svg"))
    (shown,) = drawn
    assert shown.unit == "slot-hours" and len(shown.projects) == 7
    assert list(shown.projects)[-1] == "others"
    assert shown.projects["others"][-2] == pytest.approx(14 + 13 + 12)


def test_a_report_has_the_last_days_as_bars(rig: Rig, run: Run) -> None:
    assert "last 30 days" not in run()
    for back in range(1, 31):
        put(rig, back, "vision", 1, 60 - 2 * back)
    said = run()
    assert "▁" in said and "█" in said and "29.0 USD a day, 58.0 yesterday" in said
    assert "last 30 days" not in run("--by", "store") + run("--csv") + run("--json")


def a_figure() -> CostFigure:
    days = [date(2026, 11, 1) + timedelta(days=index) for index in range(20)]
    ahead = [date(2026, 11, 21) + timedelta(days=index) for index in range(10)]
    flat = [5.0] * 20
    parts = {"vision": flat, "_odd $x$ <b>": flat, "日本": flat}
    band = ([10.0] * 10, [8.0] * 10, [12.0] * 10)
    return CostFigure("Cost", "US dollars", days, parts, {"idle": flat}, ahead, *band)


def test_a_file_of_another_format_and_a_missing_library_are_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"'a\.pdf'"):
        run("--plot", str(tmp_path / "a.pdf"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="needs matplotlib"):
        write_figure(tmp_path / "a.svg", a_figure())


@pytest.mark.extras
def test_figures_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_figure(tmp_path / "a.svg", a_figure())
    first = (tmp_path / "a.svg").read_text()
    write_figure(tmp_path / "a.svg", a_figure())
    assert (tmp_path / "a.svg").read_text() == first
    assert "vision" in first and "_odd $x$ &lt;b&gt;" in first
    write_figure(tmp_path / "a.PNG", a_figure())
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="cannot be written"):
        write_figure(tmp_path / "none" / "a.png", a_figure())
