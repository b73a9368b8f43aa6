"""Objectives of job classes: spec, settings, route, rights, command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from integration.rig import Rig, open_rig
from phalanx.cli.app import app
from phalanx.cli.verbs.monitoring import slo
from phalanx.cli.verbs.monitoring.slo_review import (
    ReviewFacts,
    objective_row,
    review_text,
    sentences,
)
from phalanx.core.metrics.catalogue import family
from phalanx.core.slo.objectives import Indicator
from phalanx.core.slo.recording import slo_rule_file
from phalanx.errors import SpecInvalid, UserError
from phalanx.schemas.api.health.objectives import ObjectiveReport, ObjectivesView
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.settings_groups.objectives import SloSettings
from phalanx.services.cost.report import fold_step
from support.checkpoints import commit

pytestmark = pytest.mark.integration
CLASSES = {
    "production": {"success": "99%", "goodput": 0.95, "start_p95": "5m", "recovery_p95": "2m"},
    "experiment": {"success": "90%", "pages": False},
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    settings = Settings(
        api=ApiSettings(max_stream_s=0), slo=SloSettings.model_validate({"classes": CLASSES})
    )
    with open_rig(tmp_path / "home", settings=settings) as one:
        yield one


def of(found: ObjectivesView, name: str, objective: str = "success") -> ObjectiveReport:
    (one,) = [
        one for one in found.objectives if (one.job_class, one.objective) == (name, objective)
    ]
    return one


def started(rig: Rig, **changes: object) -> tuple[int, object]:
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 1}, **changes)
    rig.turn(1.0)
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    return num, supervisor


def completed(rig: Rig, **changes: object) -> int:
    num, supervisor = started(rig, **changes)
    supervisor.ended()
    rig.turn(0.1)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).is_terminal
    return num


def failed(rig: Rig, cause: str, **changes: object) -> int:
    recovery = {cause: {"count": 0}}
    num, supervisor = started(rig, recovery=recovery, **changes)
    failure = supervisor.failure("it is gone", cause=cause)
    supervisor.sync(wire.RankFailedReport(seq=supervisor.next_seq(), generation=0, failure=failure))
    supervisor.ended(outcome="failed", failure=failure)
    rig.turn(1.0)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).state == "failed"
    return num


def test_jobs_count_in_their_class_by_fault(rig: Rig) -> None:
    nothing = rig.client.objectives()
    assert {one.state for one in nothing.objectives} == {"no data"}
    assert of(nothing, "default").budget_left is None
    completed(rig, **{"class": "production"})
    failed(rig, "start_failed", **{"class": "production"})
    failed(rig, "rank_crash", **{"class": "experiment"})  # of the script: not bad
    completed(rig)
    rig.client.stop(rig.submit(**{"class": "experiment"}))
    found = rig.client.objectives(days=7)
    production = of(found, "production")
    assert (production.total, production.bad, production.state) == (2, 1, "spent")
    assert production.budget_left == pytest.approx(1 - 0.5 / 0.01)
    assert (of(found, "experiment").total, of(found, "experiment").bad) == (1, 0)
    assert (of(found, "default").total, of(found, "default").state) == (1, "ok")
    start = of(found, "production", "start_p95")
    assert (start.target, start.limit_s, start.total, start.bad) == (0.95, 300.0, 2, 0)
    # After the period they count no more.
    rig.clock.advance(8 * 86_400.0)
    assert of(rig.client.objectives(days=7), "production").total == 0
    assert of(rig.client.objectives(days=30), "production").total == 2


def test_slow_starts_and_recoveries_are_bad(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 1}, **{"class": "production"})
    rig.clock.advance(301.0)
    rig.turn(1.0)
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    supervisor.failed()
    rig.clock.advance(121.0)
    supervisor.ended(outcome="failed", step=5)
    rig.turn(1.0)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started(generation=1)
    supervisor.ended(generation=1)
    rig.turn(0.1)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).state == "succeeded"
    fold_step(rig.platform)
    found = rig.client.objectives()
    assert [of(found, "production", one).bad for one in ("start_p95", "recovery_p95")] == [1, 1]
    goodput = of(found, "production", "goodput")
    assert goodput.total > 120 and goodput.bad <= goodput.total


def test_only_the_jobs_of_one_project(rig: Rig) -> None:
    completed(rig, project="vision", **{"class": "production"})
    assert of(rig.client.objectives(project="vision"), "production").total == 1
    assert of(rig.client.objectives(project="text"), "production").total == 0


def test_a_class_that_does_not_exist_is_refused(rig: Rig) -> None:
    with pytest.raises(SpecInvalid, match="production") as caught:
        rig.submit(**{"class": "prodction"})
    assert [one.path for one in caught.value.problems] == ["class"]


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ({"a": {"success": "101%"}}, "less than 1"),
        ({"a": {"success": "much"}}, "not a share"),
        ({"a": {"start_p95": "0s"}}, "greater than 0"),
        ({"a b": {}}, "match pattern"),
        ({"a": {"sucess": 0.9}}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense_are_refused(classes: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SloSettings.model_validate({"classes": classes})


def test_settings_become_classes_with_a_default_one() -> None:
    found = SloSettings.model_validate({"classes": CLASSES}).resolved()
    assert set(found) == {"default", "production", "experiment"}
    assert [one.indicator for one in found["production"].objectives] == list(Indicator)
    assert not found["experiment"].pages and found["production"].pages
    own = SloSettings.model_validate({"classes": {"default": {"success": 0.5}}}).resolved()
    assert own["default"].objectives[0].target == 0.5


TIMES = ("phalanx_class_queue_wait_seconds", "phalanx_class_recovery_seconds")


def of_class(rig: Rig) -> dict[str, float]:
    """The series by class of a scrape that are not 0."""
    lines = Exposition(rig.context).scrape(rig.clock.now()).decode().splitlines()
    pairs = (one.rsplit(" ", 1) for one in lines if one.startswith("phalanx_class_"))
    return {series: float(value) for series, value in pairs}


def test_classes_have_counters_from_the_first_scrape_on(rig: Rig) -> None:
    first = of_class(rig)
    buckets = sum(len(family(name).bounds) + 3 for name in TIMES)
    assert len(first) == 3 * (4 + 2 + buckets) and set(first.values()) == {0.0}
    completed(rig, **{"class": "production"})
    failed(rig, "start_failed")
    found = of_class(rig)
    ends = {key: value for key, value in found.items() if "jobs_ended" in key and value}
    assert ends == {
        'phalanx_class_jobs_ended_total{class="production",fault="none"}': 1,
        'phalanx_class_jobs_ended_total{class="default",fault="platform"}': 1,
    }
    waits = {key: value for key, value in found.items() if "queue_wait_seconds_count" in key}
    assert {key.split('"')[1]: value for key, value in waits.items() if value} == {
        "production": 1,
        "default": 1,
    }
    # The slot time of the class is that of the ledger.
    fold_step(rig.platform)
    held = of(rig.client.objectives(), "production", "goodput").total
    uses = [value for key, value in found.items() if "slot_seconds" in key and "production" in key]
    assert held > 0 and sum(uses) == pytest.approx(held)


def test_reviews_name_failures_cost_and_what_burns(rig: Rig) -> None:
    for _ in range(3):
        failed(rig, "start_failed", **{"class": "production"})
    completed(rig, project="vision")
    found = rig.client.objectives(days=7)
    row = objective_row(of(found, "production"))
    assert row[:4] == ("production", "success", "99 %", "0 %") and row[-1] == "spent"
    said = "\n".join(sentences(found))
    assert "success of production: the budget is spent 100.0 times too fast over 1h" in said
    failed_jobs = list(rig.client.every_job(states=["failed"]))
    week = review_text(ReviewFacts("week", None, found, failed_jobs))
    assert week.startswith("# Review of the week\n") and said.splitlines()[0] in week
    assert re.search(r"\| start_failed \| 3 \| j-\d+ \|", week) and "## Cost" not in week
    nothing = ObjectivesView(days=30, objectives=[])
    cost = rig.client.costs.report("project")
    month = review_text(ReviewFacts("month", "a|b", nothing, [], cost))
    assert "# Review of the month of a\\|b" in month and "| vision |" in month
    assert "Nothing burns" in month and "## Quotas" in month


def test_the_review_of_a_month_has_damaged_checkpoints_and_what_a_scrub_reads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    num, supervisor = started(rig)
    rig.clock.advance(86_400)
    supervisor.sync(
        wire.QuarantinedReport(
            seq=supervisor.next_seq(), generation=0, path="/c/step-7", message="digest differs"
        )
    )
    monkeypatch.setattr(slo, "connected", lambda ctx: nullcontext(rig.client))
    monkeypatch.setattr(slo, "SystemClock", lambda: rig.clock)
    whole, broken = commit(tmp_path / "here", 1), commit(tmp_path / "there", 2)
    (broken / "state.bin").write_bytes(b"?" * len(b"weights" * 2))

    def said(*words: object) -> str:
        done = CliRunner().invoke(app, ["slo", "review", *map(str, words)])
        assert done.exit_code == 0, done.output
        return done.output

    text = said("--month", "--scrub", whole.parent, "--scrub", broken.parent)
    assert re.search(rf"\| j-{num} \| [\d-]+ \| /c/step-7 \| digest differs \|", text)
    assert "A scrub has read 2 checkpoints: 1 are damaged." in text
    assert broken.name in text and "state.bin" in text and whole.name not in text
    assert "--scrub WHERE" in said("--month") and "## Checkpoints" not in said("--week")
    rig.clock.advance(40 * 86_400)
    assert "None was found damaged" in said("--month")
    refused = CliRunner().invoke(app, ["slo", "review", "--week", "--scrub", "here"])
    assert isinstance(refused.exception, UserError)


def test_the_verbs_print_tables_reviews_and_documents(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(rig, **{"class": "production"})
    monkeypatch.setattr(slo, "connected", lambda ctx: nullcontext(rig.client))

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["slo", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "production" in said("list") and '"burns"' in said("list", "--json")
    assert "# Review of the week" in said("review", "--week")
    assert "## Cost" in said("review", "--month", "--project", "default")
    assert "phalanx:sli_requeue_ratio" in said("indicators")
    assert yaml.safe_load(said("rules")) == slo_rule_file()
    kinds = [one["kind"] for one in yaml.safe_load_all(said("openslo"))]
    assert kinds == ["Service", "DataSource", *["SLO"] * 6]
    for words in (["review"], ["review", "--week", "--month"]):
        refused = CliRunner().invoke(app, ["slo", *words])
        assert isinstance(refused.exception, UserError)
