"""GET /metrics: valid text, the right numbers, bounded series; totals belong to the database."""

from __future__ import annotations

import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.rig import TOKEN, URL, Rig
from phalanx.core.metrics import training
from phalanx.core.telemetry.instruments import BOUNDS
from phalanx.errors import LaunchError
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition

pytestmark = pytest.mark.integration


def text_of(rig: Rig, token: str = TOKEN) -> httpx.Response:
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        return http.get("/metrics", headers={"Authorization": f"Bearer {token}"})


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and sorted labels; the text must parse, with no sample twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, tuple(sorted(one.labels.items())))
            assert key not in found
            found[key] = one.value
    return found


def of(found: dict, name: str, /, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def named(num: int) -> dict[str, str]:
    return {"project": "default", "job": f"j-{num}", "phalanx_job": f"j-{num}"}


def running(rig: Rig):
    num = rig.submit()
    for _ in range(3):
        rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    return num, supervisor


def report(supervisor, rank: int, step: int, values: dict[str, float], generation: int = 0) -> None:
    point = wire.MetricPoint(rank=rank, step=step, at=supervisor.now(), values=values)
    supervisor.sync(
        wire.MetricsReport(seq=supervisor.next_seq(), generation=generation, points=[point])
    )


SECTIONS = {
    "data_loading_time_seconds": 0.01,
    "data_loading_time_seconds|6": 10.0,
    "data_loading_time_seconds|sum": 0.1,
    "communication_time_seconds": 0.002,
    "communication_time_seconds|4": 10.0,
    "communication_time_seconds|sum": 0.02,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
}
WINDOW = {
    "step_time_seconds": 0.03,
    "step_time_seconds|7": 2.0,
    "step_time_seconds|8": 8.0,
    "step_time_seconds|sum": 0.3,
    "training_samples": 320.0,
    "training_steps_per_sec": 33.0,
}


def test_the_token_is_needed(rig: Rig) -> None:
    assert text_of(rig, "wrong").status_code == 401
    assert text_of(rig).headers["content-type"].startswith("text/plain; version=0.0.4")


def test_ranks_windows_and_the_scripts_own_names(rig: Rig) -> None:
    text_of(rig)
    num, supervisor = running(rig)
    here = named(num)
    for _ in range(2):
        report(supervisor, 1, 10, WINDOW)
    report(supervisor, 0, 10, {"loss": 0.25, "acc": 0.9, "lr": 1e-3})
    found = samples(text_of(rig).text)
    assert of(found, "training_loss", **here) == 0.25
    assert of(found, "training_accuracy", **here) == 0.9
    assert of(found, "training_metric", **here, name="lr") == 1e-3
    assert of(found, "training_steps_per_sec", **here, rank="1") == 33.0
    assert of(found, "training_samples_total", **here, rank="1") == 640.0
    rank = here | {"rank": "1"}
    assert of(found, "step_time_seconds_bucket", **rank, le=str(BOUNDS[7])) == 4
    assert of(found, "step_time_seconds_bucket", **rank, le="+Inf") == 20
    assert of(found, "step_time_seconds_count", **rank) == 20
    assert of(found, "step_time_seconds_sum", **rank) == pytest.approx(0.6)
    # Looked at twice, counted once.
    assert of(samples(text_of(rig).text), "training_samples_total", **rank) == 640.0


def test_sections_of_the_step_are_added_up_over_the_ranks_of_a_job(rig: Rig) -> None:
    text_of(rig)
    num, supervisor = running(rig)
    for rank in range(2):
        report(supervisor, rank, 10, WINDOW | SECTIONS)
    text = text_of(rig).text
    found, here = samples(text), named(num)
    assert of(found, "data_loading_time_seconds_count", **here) == 20
    assert of(found, "data_loading_time_seconds_sum", **here) == pytest.approx(0.2)
    assert of(found, "communication_time_seconds_count", **here, operation="all_reduce") == 20
    section = here | {"rank": "1", "section": "data_loading"}
    assert of(found, "phalanx_rank_section_seconds", **section) == 0.01
    assert of(found, "phalanx_gpu_temperature_celsius", **here, rank="1") == 61.0
    # NVIDIA's own exporter has these names: a sum over both would count a device twice.
    assert "DCGM_" not in text


def test_what_a_node_uses_is_shown_once_with_the_node_as_a_label(rig: Rig) -> None:
    text_of(rig)
    num, supervisor = running(rig)
    used = {"phalanx_host_cpu_ratio": 0.5, "phalanx_host_network_sent_bytes": 10.0}
    for rank in range(2):  # only the first rank of a node stands for it
        report(supervisor, rank, 10, WINDOW | used)
    found = samples(text_of(rig).text)
    shown = {name: dict(labels) for name, labels in found if name.startswith("phalanx_host_")}
    assert set(shown) == {"phalanx_host_cpu_ratio", "phalanx_host_network_sent_bytes_total"}
    for labels in shown.values():
        assert labels.pop("node") and labels == named(num)
    assert sum(name.startswith("phalanx_host_") for name, _ in found) == 2


def test_a_project_has_series_of_cost_before_its_first_cost(rig: Rig) -> None:
    rig.submit()
    found = samples(text_of(rig).text)
    assert of(found, "phalanx_cost_usd_total", project="default") == 0
    assert of(found, "phalanx_slot_seconds_total", project="default", account="redone") == 0


def test_a_later_control_plane_shows_the_newest_and_counts_from_now_on(rig: Rig) -> None:
    num, supervisor = running(rig)
    report(supervisor, 0, 10, WINDOW | {"loss": 0.25})
    later = Exposition(rig.context)
    found = samples(later.scrape(rig.clock.now()).decode())
    here = named(num)
    assert of(found, "training_loss", **here) == 0.25
    assert of(found, "training_steps_per_sec", **here, rank="0") == 33.0
    assert ("training_samples_total", tuple(sorted((here | {"rank": "0"}).items()))) not in found
    report(supervisor, 0, 20, WINDOW)
    found = samples(later.scrape(rig.clock.now()).decode())
    assert of(found, "training_samples_total", **here, rank="0") == 320.0


def test_states_queue_restarts_and_checkpoints(rig: Rig) -> None:
    text_of(rig)
    num, supervisor = running(rig)
    waiting = rig.submit()
    supervisor.sync(
        wire.CheckpointReport(
            seq=supervisor.next_seq(),
            generation=0,
            step=5,
            epoch=0,
            path="/c/step-5",
            size_bytes=1000,
            took_s=0.2,
            metrics={},
            at=supervisor.now(),
        )
    )
    supervisor.failed()
    supervisor.ended(outcome="failed", step=5)
    rig.turn(30.0)
    found = samples(text_of(rig).text)
    assert of(found, "phalanx_jobs_submitted_total") == 2
    assert of(found, "phalanx_restarts_total", cause="rank_crash") == 1
    here = named(num)
    assert of(found, "phalanx_job_restarts_total", **here) == 1
    assert of(found, "phalanx_failures_total", cause="rank_crash") == 1
    assert of(found, "phalanx_checkpoints_total", outcome="committed") == 1
    assert of(found, "phalanx_checkpoint_bytes_total") == 1000
    assert of(found, "phalanx_checkpoint_save_seconds_bucket", le="0.25") == 1
    assert of(found, "phalanx_checkpoint_save_seconds_bucket", le="0.1") == 0
    assert of(found, "phalanx_queue_wait_seconds_count") >= 1
    assert of(found, "phalanx_jobs", state="failed") == 0
    assert waiting != num


def test_a_job_that_has_ended_leaves_no_series(rig: Rig) -> None:
    text_of(rig)
    num, supervisor = running(rig)
    report(supervisor, 0, 10, WINDOW)
    assert f'job="j-{num}"' in text_of(rig).text
    supervisor.ended()
    rig.turn(0.1)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).is_terminal
    text = text_of(rig).text
    assert f'job="j-{num}"' not in text
    found = samples(text)
    assert of(found, "phalanx_jobs_finished_total", state="succeeded") == 1
    assert of(found, "phalanx_job_seconds_count", state="succeeded") == 1
    assert of(found, "phalanx_start_seconds_count") == 1


def test_series_are_bounded_and_what_is_left_out_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_RANKS_OF_A_JOB", 2)
    text_of(rig)
    num, supervisor = running(rig)
    for rank in range(3):
        report(supervisor, rank, 10, WINDOW)
    report(supervisor, 0, 11, {f"made_up_{index}": 1.0 for index in range(100)})
    found = samples(text_of(rig).text)
    ranks = {dict(labels)["rank"] for _, labels in found if "rank" in dict(labels)}
    assert ranks == {"0", "1"}
    assert of(found, "phalanx_ranks_not_shown") == 1
    names = [labels for name, labels in found if name == "training_metric"]
    assert len(names) == training.MAX_NAMES
    assert num == 1


def test_parts_of_distributions_are_not_shown_as_metrics(rig: Rig) -> None:
    num, supervisor = running(rig)
    report(supervisor, 0, 10, WINDOW | {"loss": 0.5})
    view = rig.client.metrics(num)
    assert "loss" in view.names and "step_time_seconds" in view.names
    assert not [name for name in view.names if "|" in name]
    assert not [one.name for one in view.series if "|" in one.name]
    # A job's one-line progress stays the script's own.
    assert rig.job(num).progress.last_metrics == {"loss": 0.5}


def test_last_values_of_a_script_stay_behind_reports_of_nodes_and_other_ranks(rig: Rig) -> None:
    num, supervisor = running(rig)
    report(supervisor, 0, 10, WINDOW | {"loss": 0.5})
    for step in range(11, 31):
        report(supervisor, 1, step, {"phalanx_host_cpu_ratio": 0.5})
    for _ in range(6):
        report(supervisor, 0, 30, {"phalanx_host_cpu_ratio": 0.5})
    assert rig.job(num).progress.last_metrics == {"loss": 0.5}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong(rig: Rig) -> None:
    _, supervisor = running(rig)
    report(supervisor, 0, 10, WINDOW)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(rig).text, text=True, capture_output=True
    )
    # Two names are those that users' dashboards have already; promtool dislikes their unit.
    kept = ("training_steps_per_sec ", "training_throughput_samples_per_sec ")
    said = [line for line in done.stderr.splitlines() if line and not line.startswith(kept)]
    assert (said, done.returncode in (0, 3)) == ([], True), done.stdout + done.stderr


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launch_that_fails_is_counted_as_a_restart(rig: Rig, nodes: int) -> None:
    text_of(rig)
    real = rig.executor.start

    def start(node, assignment):
        rig.executor.start = real
        raise LaunchError("the disk is full")

    rig.executor.start = start
    num = rig.submit(resources={"nodes": nodes, "slots_per_node": 1})
    rig.turn()
    rig.turn(60)
    assert rig.job(num).attempts == 2
    found = samples(text_of(rig).text)
    assert of(found, "phalanx_restarts_total", cause="start_failed") == 1


@pytest.mark.parametrize("begun", [False, True])
def test_ranks_that_cannot_be_started_are_counted_as_a_restart(rig: Rig, begun: bool) -> None:
    text_of(rig)
    num = rig.submit()
    rig.turn()
    one = rig.supervisor(num)
    one.ready()
    if begun:
        one.started()
    failure = one.failure("the node cannot start ranks", cause="start_failed")
    one.sync(wire.RankFailedReport(seq=one.next_seq(), generation=0, failure=failure))
    one.ended(outcome="failed", failure=failure)
    rig.turn(60)
    found = samples(text_of(rig).text)
    assert of(found, "phalanx_restarts_total", cause="start_failed") == 1


def saved(supervisor, step: int) -> None:
    supervisor.sync(
        wire.CheckpointReport(
            seq=supervisor.next_seq(),
            generation=0,
            step=step,
            epoch=0,
            path=f"/c/step-{step}",
            size_bytes=1000,
            took_s=0.2,
            metrics={},
            at=supervisor.now(),
        )
    )


def test_age_and_interval_of_checkpoints_of_a_running_job(rig: Rig) -> None:
    num, supervisor = running(rig)
    here = tuple(sorted(named(num).items()))
    assert ("phalanx_job_checkpoint_age_seconds", here) not in samples(text_of(rig).text)
    rig.clock.advance(100.0)
    saved(supervisor, 5)
    rig.clock.advance(40.0)
    found = samples(text_of(rig).text)
    assert found["phalanx_job_checkpoint_age_seconds", here] == pytest.approx(40.0, abs=1.0)
    assert found["phalanx_job_checkpoint_interval_seconds", here] == 600.0  # as in the spec


def test_the_interval_of_counted_saves_is_the_time_between_the_last_two(rig: Rig) -> None:
    num = rig.submit(checkpoint={"every": "50 steps"})
    for _ in range(3):
        rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    here = tuple(sorted(named(num).items()))
    saved(supervisor, 50)
    one = samples(text_of(rig).text)
    assert ("phalanx_job_checkpoint_interval_seconds", here) not in one
    rig.clock.advance(70.0)
    saved(supervisor, 100)
    found = samples(text_of(rig).text)
    assert found["phalanx_job_checkpoint_interval_seconds", here] == pytest.approx(70.0, abs=1.0)


def test_ended_jobs_are_counted_by_fault_from_zero_on(rig: Rig) -> None:
    name = "phalanx_jobs_ended_total"
    before = samples(text_of(rig).text)
    faults = ("cancelled", "none", "platform", "user")
    assert [of(before, name, fault=one) for one in faults] == [0, 0, 0, 0]
    rig.client.stop(rig.submit())
    num, supervisor = running(rig)
    supervisor.ended()
    rig.turn(0.1)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).is_terminal
    found = samples(text_of(rig).text)
    assert [of(found, name, fault=one) for one in faults] == [1, 1, 0, 0]


def test_queued_jobs_within_an_unused_guarantee_are_counted(rig: Rig) -> None:
    name = "phalanx_guaranteed_waiting_jobs"
    rig.client.apply_projects(
        {
            "schema": 1,
            "projects": [
                {"name": "lab", "guaranteed_slots": 3},
                {"name": "vision", "parent": "lab", "guaranteed_slots": 1},
                {"name": "text"},
            ],
        }
    )
    for project, slots in (("vision", 1), ("vision", 3), ("vision", 4), ("text", 1)):
        rig.submit(project=project, resources={"nodes": 1, "slots_per_node": slots})
    # The first fits into its own guarantee, the second into that of its parent.
    assert of(samples(text_of(rig).text), name) == 2
