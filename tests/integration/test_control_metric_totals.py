"""Totals of metrics: zeros at first, equal on all replicas; the catalogue beside a scrape."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from collections.abc import Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from integration.rig import Rig
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.core.metrics.family import Family, MetricOrigin
from phalanx.core.telemetry.instruments import INSTRUMENTS, Kind
from phalanx.operator.metrics import OperatorMetrics
from phalanx.schemas.api.cost import SetBudgetRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition
from phalanx.server.observe.sheet import Sheet
from phalanx.server.settings import MetricsSettings
from phalanx.store.engines import totals as stored_totals

pytestmark = pytest.mark.integration


def scraped(one: Exposition, rig: Rig) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of a scrape by their names."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(one.scrape(rig.clock.now()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(
    found: Mapping[str, list[tuple[dict[str, str], float]]], name: str, **labels: str
) -> float:
    (only,) = [number for given, number in found[name] if given == labels]
    return only


def started(rig: Rig):
    num = rig.submit(resources={"nodes": 1, "slots_per_node": 1})
    for _ in range(3):
        rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    return num, supervisor


def crashed(rig: Rig) -> None:
    _, supervisor = started(rig)
    supervisor.failed()
    supervisor.ended(outcome="failed", step=5)
    rig.turn(30.0)


def known_series(rig: Rig, family: Family) -> set[tuple[str, ...]]:
    """All values of the labels of a total: those of classes are in the settings."""
    return set(itertools.product(*(one.values or rig.platform.classes for one in family.labels)))


def test_every_series_of_the_totals_is_there_before_anything_is_counted(rig: Rig) -> None:
    found = scraped(Exposition(rig.context), rig)
    for family in CATALOGUE.values():
        if family.total:
            name = f"{family.name}_count" if family.kind is Kind.HISTOGRAM else family.exported
            assert len(found[name]) == len(known_series(rig, family)) >= 1, name
            assert {number for _, number in found[name]} == {0.0}, name
    before = value(found, "phalanx_restarts_total", cause="rank_crash")
    crashed(rig)
    after = value(
        scraped(Exposition(rig.context), rig), "phalanx_restarts_total", cause="rank_crash"
    )
    assert (before, after) == (0.0, 1.0)


def test_every_label_that_is_counted_is_known_beforehand(rig: Rig) -> None:
    crashed(rig)
    counted = rig.store.view(lambda tx: stored_totals.read_totals(tx.conn))
    assert len(counted) >= 8
    for name, labels in counted:
        family = CATALOGUE[name.partition("|")[0]]
        assert family.total and labels in known_series(rig, family), (name, labels)


def test_replicas_have_the_same_totals_and_the_end_of_one_changes_none(rig: Rig) -> None:
    one = Exposition(rig.context)
    scraped(one, rig)
    crashed(rig)
    first = totals_of(scraped(one, rig))
    assert first["phalanx_restarts_total", (("cause", "rank_crash"),)] == 1.0
    # A replica that begins later, and one that begins after the end of the first.
    assert totals_of(scraped(Exposition(rig.context), rig)) == first
    crashed(rig)
    later = totals_of(scraped(Exposition(rig.context), rig))
    assert later["phalanx_restarts_total", (("cause", "rank_crash"),)] == 2.0
    assert all(later[key] >= number for key, number in first.items())


def totals_of(
    found: Mapping[str, list[tuple[dict[str, str], float]]],
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    names = {one.exported for one in CATALOGUE.values() if one.total and one.kind is Kind.COUNTER}
    return {
        (name, tuple(sorted(labels.items()))): number
        for name in names
        for labels, number in found[name]
    }


def test_what_is_rolled_back_is_not_counted(rig: Rig) -> None:
    def work(tx) -> None:
        tx.touched.totals.add("phalanx_warnings")
        raise LookupError

    with pytest.raises(LookupError):
        rig.store.transact(work)
    rig.store.transact(lambda tx: tx.touched.totals.add("phalanx_warnings", by=2))
    assert value(scraped(Exposition(rig.context), rig), "phalanx_warnings_total") == 2.0


def test_requests_to_make_room_are_preemptions_and_restarts(rig: Rig) -> None:
    num, _ = started(rig)
    rig.turn(600.0)
    rig.submit(priority=90, resources={"nodes": 1, "slots_per_node": 4})
    rig.turn(5.0)
    assert rig.job(num).state == "stopping"
    found = scraped(Exposition(rig.context), rig)
    assert value(found, "phalanx_preemptions_total", cause="preempted") == 1.0
    assert value(found, "phalanx_restarts_total", cause="preempted") == 1.0


def test_saves_that_fail_are_counted_and_other_warnings_are_not(rig: Rig) -> None:
    _, supervisor = started(rig)
    for code in ("", "save_failed"):
        supervisor.sync(
            wire.WarningReport(
                seq=supervisor.next_seq(),
                generation=0,
                rank=0,
                message=f"a sentence {code}",
                code=code,
                at=supervisor.now(),
            )
        )
    found = scraped(Exposition(rig.context), rig)
    assert value(found, "phalanx_warnings_total") == 2.0
    assert value(found, "phalanx_save_failures_total", save="regular") == 1.0


def test_a_scrape_of_openmetrics_has_the_traces_of_jobs_as_exemplars(rig: Rig) -> None:
    one = Exposition(rig.context)
    num, _ = started(rig)
    text = one.scrape(rig.clock.now(), openmetrics=True).decode()
    families = {family.name: family for family in openmetrics(text)}
    plain = scraped(one, rig)
    assert {sample.name for family in families.values() for sample in family.samples} == set(plain)
    for name in ("phalanx_queue_wait_seconds", "phalanx_start_seconds"):
        (found,) = [
            (sample, sample.exemplar) for sample in families[name].samples if sample.exemplar
        ]
        sample, exemplar = found
        assert exemplar.labels == {"trace_id": rig.job(num).trace_id}
        assert exemplar.value <= float(sample.labels["le"])
        assert exemplar.value == value(plain, f"{name}_sum")
    assert " # {" not in one.scrape(rig.clock.now()).decode()
    assert len(rig.job(num).trace_id) == 32


def test_the_format_follows_what_a_scrape_asks_for(rig: Rig) -> None:
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    got = rig.client._http.get("/metrics", headers={"accept": asked})
    assert got.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert list(openmetrics(got.text))
    got = rig.client._http.get("/metrics")
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")


# -- the catalogue -------------------------------------------------------------------------------


def test_ranks_that_do_not_fit_together_are_no_start_failure(rig: Rig) -> None:
    for exception, cause in (("PreflightFailed", "start_failed"), ("OSError", "start_failed")):
        _, supervisor = started(rig)
        supervisor.failed(exception=exception, cause=cause)
    found = scraped(Exposition(rig.context), rig)
    assert value(found, "phalanx_preflight_failures_total") == 1
    assert value(found, "phalanx_start_failures_total", cause="start_failed") == 1
    assert value(found, "phalanx_failures_total", cause="start_failed") == 2


def eventful(rig: Rig) -> None:
    """A job that crashed, one that trains and saves, one that has ended, and a budget for them."""
    rig.client.costs.set_budget("project", "default", SetBudgetRequest(slot_hours=100))
    crashed(rig)
    _, ended = started(rig)
    ended.ended()
    rig.turn(0.1)
    ended.leave()
    rig.turn(1.0)
    _, supervisor = started(rig)
    values = {one.name: 1.0 for one in INSTRUMENTS.values()} | {"loss": 0.5, "acc": 0.9}
    for one in INSTRUMENTS.values():
        if one.kind is Kind.HISTOGRAM:
            values |= {f"{one.name}|3": 1.0, f"{one.name}|sum": 1.0}
    supervisor.step(0, 3)
    point = wire.MetricPoint(rank=0, step=3, at=supervisor.now(), values=values)
    supervisor.sync(
        wire.MetricsReport(seq=supervisor.next_seq(), generation=0, points=[point]),
        wire.CheckpointReport(
            seq=supervisor.next_seq() + 1,
            generation=0,
            step=3,
            epoch=1,
            path="/c/step-3",
            size_bytes=10,
            took_s=0.2,
            metrics={},
            at=supervisor.now(),
        ),
    )


def unconditional() -> set[str]:
    return {
        one.exported
        for one in CATALOGUE.values()
        if one.origin is not MetricOrigin.OPERATOR and not one.condition
    }


def families_of(text: str) -> dict[str, tuple[str, set[frozenset[str]], str]]:
    """By exported name: the type, the sets of label names, and the explanation."""
    found: dict[str, tuple[str, set[frozenset[str]], str]] = {}
    for one in text_string_to_metric_families(text):
        labels = {frozenset(sample.labels) - {"le"} for sample in one.samples}
        name = f"{one.name}_total" if one.type == "counter" else one.name
        found[name] = (one.type, labels, one.documentation)
    return found


def check_both_ways(text: str) -> None:
    by_name: dict[str, Family] = {one.exported: one for one in CATALOGUE.values()}
    found = families_of(text)
    assert sorted(set(found) - set(by_name)) == [], "exported, and not in the catalogue"
    assert sorted(unconditional() - set(found)) == [], "in the catalogue, and not exported"
    for name, (kind, labels, text_of) in found.items():
        family = by_name[name]
        assert kind == family.kind.value and text_of == family.help
        assert labels == {frozenset(family.label_names)}, name


def test_a_scrape_and_the_catalogue_are_equal(rig: Rig) -> None:
    exposition = Exposition(rig.context)
    scraped(exposition, rig)
    eventful(rig)
    text = exposition.scrape(rig.clock.now()).decode()
    check_both_ways(text)
    # Of those with a condition, all that such a day brings.
    missing = {
        one.exported for one in CATALOGUE.values() if one.origin is not MetricOrigin.OPERATOR
    }
    missing -= set(families_of(text))
    assert not [name for name in missing if not name.startswith(CONDITIONAL)], missing
    assert len(families_of(text)) >= 90


#: Families of what this day does not have: pools that scale, quotas, anomalies, senders, probes.
CONDITIONAL = (
    "phalanx_scaling_",
    "phalanx_quota_",
    "phalanx_cost_anomaly_extra_",
    "phalanx_loop_idle_seconds",
    "phalanx_log_quota_bytes",
    "phalanx_log_sender_",
    "phalanx_probe_",
)


@pytest.mark.parametrize("change", ["more", "fewer", "other labels"])
def test_the_comparison_finds_a_difference(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    text = Exposition(rig.context).scrape(rig.clock.now()).decode()
    name = "phalanx_queue_length"
    changed = {
        "more": text + "# TYPE phalanx_made_up gauge\nphalanx_made_up 1\n",
        "fewer": "".join(line for line in text.splitlines(True) if name not in line),
        "other labels": text.replace(f"\n{name} ", f'\n{name}{{pool="a"}} '),
    }[change]
    check_both_ways(text)
    with pytest.raises(AssertionError):
        check_both_ways(changed)


def test_a_family_outside_the_catalogue_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        Sheet().put("phalanx_made_up", 1)
    with pytest.raises(KeyError):
        Sheet().put("phalanx_operator_contact", 1)
    with pytest.raises(ValueError, match="shorter"):
        Sheet().put("phalanx_jobs", 1)


def test_label_values_of_scripts_are_escaped_and_every_number_is_written() -> None:
    sheet = Sheet()
    odd = {'a"b': math.inf, "c\\d": -math.inf, "e\nf": 1e300, 'back\\"': 0.1}
    for name, number in odd.items():
        sheet.put("training_metric", number, "p", "j-1", "j-1", name)
    sheet.put("training_loss", math.nan, "p", "j-1", "j-1")
    families = {one.name: one for one in text_string_to_metric_families(sheet.text().decode())}
    read = {one.labels["name"]: one.value for one in families["training_metric"].samples}
    assert read == odd
    assert math.isnan(families["training_loss"].samples[0].value)


def test_the_operator_exports_its_part_of_the_catalogue() -> None:
    found = {one.name: one for one in OperatorMetrics().registry.collect()}
    expected = {one.name: one for one in CATALOGUE.values() if one.origin is MetricOrigin.OPERATOR}
    assert {name: (one.type, one.documentation) for name, one in found.items()} == {
        name: (one.kind.value, one.help) for name, one in expected.items()
    }


def test_names_follow_the_rules_of_prometheus() -> None:
    for one in CATALOGUE.values():
        assert one.help[0].isupper() or one.help[0].isdigit()
        assert len(one.name) <= 64 - len("|sum"), "a total has room for its name"
        assert all(label.bound >= 1 for label in one.labels), one.name
        if one.name.startswith("phalanx_") and one.unit in ("seconds", "bytes", "celsius", "watts"):
            assert one.name.endswith(one.unit), one.name


# -- the limit of series -------------------------------------------------------------------------


def test_above_the_limit_histograms_go_first_and_what_is_left_out_is_counted(rig: Rig) -> None:
    exposition = Exposition(rig.context)
    scraped(exposition, rig)
    eventful(rig)
    whole = scraped(exposition, rig)
    everything = int(value(whole, "phalanx_scrape_series"))
    assert value(whole, "phalanx_series_not_shown", level="histogram") == 0

    def at(max_series: int) -> dict[str, list[tuple[dict[str, str], float]]]:
        metrics = MetricsSettings.model_construct(max_series=max_series)
        changed = rig.context.settings.model_copy(update={"metrics": metrics})
        object.__setattr__(rig.context, "settings", changed)
        return scraped(exposition, rig)

    fewer = at(everything - 60)
    cut = value(fewer, "phalanx_series_not_shown", level="histogram")
    assert cut > 0 and value(fewer, "phalanx_series_not_shown", level="rank") == 0
    assert value(fewer, "phalanx_scrape_series") == everything - cut
    none = at(10)
    assert value(none, "phalanx_jobs_not_shown") == 2 and "training_step" not in none
    assert value(none, "phalanx_series_not_shown", level="job") > 0


def test_the_bounds_of_the_catalogue_are_those_of_a_scrape(rig: Rig) -> None:
    eventful(rig)
    found = scraped(Exposition(rig.context), rig)
    for one in CATALOGUE.values():
        if one.kind is not Kind.HISTOGRAM:
            assert len(found.get(one.exported, ())) <= one.most_series, one.name


# -- the programs of Prometheus ------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_a_scrape(rig: Rig) -> None:
    eventful(rig)
    text = Exposition(rig.context).scrape(rig.clock.now())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    # Names that users' dashboards have already; promtool dislikes their units.
    kept = ("training_steps_per_sec ", "training_throughput_samples_per_sec ", "gpu_memory_")
    said = [
        line for line in done.stderr.decode().splitlines() if line and not line.startswith(kept)
    ]
    assert (said, done.returncode in (0, 3)) == ([], True), done.stderr
