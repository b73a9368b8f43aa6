"""What the commands about money say, on the routes of a real control plane."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs.cost import prices, report
from phalanx.errors import UserError
from phalanx.store.storage import objects

pytestmark = pytest.mark.integration

Run = Callable[..., str]


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Run:
    for module in (prices, report):
        monkeypatch.setattr(module, "connected", lambda ctx: nullcontext(rig.client))

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=True)
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return invoke


def test_prices_are_set_listed_and_imported_once(run: Run, tmp_path: Path) -> None:
    assert "no prices" in run("prices")
    words = ("prices", "set", "slot", "2.50", "--pool", "gpu", "--spot", "--from", "2999-01-01")
    assert "the price is set" in run(*words)
    assert "nothing changed" in run(*words)
    assert all(one in run("prices", "list") for one in ("gpu", "yes", "2.5", "slot-hour"))
    file = tmp_path / "prices.csv"
    text = "kind,pool,slot_type,spot,usd,valid_from\n"
    text += "slot,gpu,,yes,2.50,2999-01-01\ncpu,,,,0.000000001,2999-02-01T06:00Z\n"
    file.write_text(text)
    assert "1 of 2 prices are new" in run("prices", "import", str(file))
    assert "0 of 2 prices are new" in run("prices", "import", str(file))
    assert "0.000000001" in run("prices", "history")


def test_stores_are_listed_with_what_they_keep(run: Run, rig: Rig) -> None:
    assert "nothing was kept" in run("cost", "--by", "store")
    words = ("prices", "set", "transfer", "0.09", "--store", "s3://a", "--direction", "read")
    assert "the price is set" in run(*words)
    assert all(one in run("prices") for one in ("s3://a", "read", "GB"))
    with pytest.raises(UserError, match="direction"):
        run("prices", "set", "storage", "1", "--direction", "read")
    num = rig.submit()
    rig.turn(1)
    rig.supervisor(num).ready()
    rig.store.transact(lambda tx: objects.keep(tx, num, "s3://a/1", rig.clock.now(), size=10**9))
    rig.clock.advance(30 * 86_400)
    run("prices", "set", "storage", "2", "--store", "s3://a")
    rig.clock.advance(30 * 86_400)
    (line,) = [one for one in run("cost", "--by", "store").splitlines() if "s3://a" in one]
    assert line.split() == ["s3://a", "1.000", "2.000", "1.000", "0.000", "2.00"]
    head, row = run("cost", "--by", "store", "--csv").splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["storage_usd"].startswith("2.0") and cells["transfer_usd"] == ""
    assert cells["kept_bytes"] == "1000000000"
    assert "1.000 GB kept, 2 GB-months: 2.0000 USD" in run("cost", f"j-{num}")


def test_advice_is_a_list_or_says_why_there_is_none(run: Run, rig: Rig) -> None:
    assert "nothing to advise" in run("cost", "--advice")
    num = rig.submit()
    rig.turn(1)
    rig.supervisor(num).ready()
    rig.supervisor(num).started()
    rig.supervisor(num).step(0, 1)
    rig.clock.advance(3600)
    said = run("cost", "--advice", "--json")
    assert '"rule": "idle"' in said and f'"job": {num}' in said
    assert "j-1" in run("cost", "--advice") and "slot-hours" in run("cost", "--advice")
    one = run("cost", f"j-{num}")
    assert "per 1,000 steps" in one and "per token" not in one
    assert [line.split()[-1] for line in one.splitlines() if "million tokens" in line] == ["–"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pool,usd\n", "line 1: the columns are pool, usd"),
        ("kind,usd\n", "has no prices"),
        ("kind,usd\nslot,1\nslot,one\n", "line 3: 'one' is no number"),
        ("kind,usd\nslot,-1\n", "line 2: usd"),
        ("kind,usd\nslot,NaN\n", "line 2: usd"),
        ("kind,usd\ngpu,1\n", "line 2: kind"),
        ("kind,usd\nslot,0.0000000001\n", "line 2: usd"),
        ("kind,usd,spot\nslot,1,perhaps\n", "line 2: spot is 'perhaps'"),
        ("kind,usd\nslot,1,2\n", "line 2: it has not as many cells"),
        ("kind,usd,valid_from\nslot,1,soon\n", "line 2: 'soon' is no time"),
        ("kind,usd,slot_type\ncpu,1,h100\n", "a price of CPU cores names a pool only"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        run("prices", "import", str(file))
    assert "no prices" in run("prices", "history")
