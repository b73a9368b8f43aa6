"""`phalanx simulate --recommend`: which policy, for which reasons, and what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import NAMED_POLICIES, PlannerConfig, Project, QueuedJob
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.planner import plan_pass
from phalanx.errors import UserError
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.project_file import ProjectSpec, read_projects
from phalanx.sim import __main__ as program
from phalanx.sim import recommend as module
from phalanx.sim.__main__ import main
from phalanx.sim.jobs import US, TraceJob, gang_of
from phalanx.sim.recommend import Replay, other_quotas, project_file, recommend
from phalanx.sim.scenario import Scenario, changed, run
from phalanx.sim.workload import history, traces
from phalanx.store import planning, resources
from phalanx.store.database import Tx, open_store
from phalanx.store.planning import StoredPolicy
from phalanx.store.quotas import rows as quotas
from phalanx.store.resources import Applied

pytestmark = pytest.mark.unit

HOUR = 3600.0
TWO_NODES = Scenario(num_nodes=2)
SMALL = ["--jobs", "60", "--nodes", "4", "--load", "1.2"]


def job(num: int, at_s: float, lasts_s: float, project: str, slots: int = 8) -> TraceJob:
    return TraceJob(num, at_s, lasts_s, gang_of(slots, 8), project=project)


def jobs() -> list[TraceJob]:
    """One project with a long run, one with many short ones."""
    found = [job(1, 0.0, 20 * HOUR, "long"), job(2, 60.0, 20 * HOUR, "long")]
    return found + [job(n, n * 600.0, 300.0, "short") for n in range(3, 40)]


def trial(planner: str, base: Scenario = TWO_NODES) -> Replay:
    return Replay(planner, "", run(replace(base, planner=planner), jobs()))


class TestNamedPolicies:
    def test_the_default_is_the_shipped_configuration(self) -> None:
        assert NAMED_POLICIES["throughput"] == PlannerConfig() == PlannerConfig()
        assert list(NAMED_POLICIES) == ["throughput", "fair", "fifo", "deadline"]

    def test_fifo_starts_jobs_of_a_priority_by_arrival(self) -> None:
        for name, first in (("fifo", 1), ("throughput", 2)):
            cluster = ClusterIndex(traces.grid_nodes(1, 8, 1), config=NAMED_POLICIES[name])
            slow = QueuedJob(1, GangShape(1, 8, 8), 50, 0, max_duration_s=90 * HOUR)
            cluster.submit(slow)
            cluster.submit(QueuedJob(2, GangShape(1, 8, 8), 50, US, max_duration_s=60.0))
            assert [start.job for start in plan_pass(cluster, 2 * US).starts] == [first]

    @pytest.mark.parametrize("name", ["fifo", "deadline"])
    def test_without_time_sharing_no_equal_is_preempted(self, name: str) -> None:
        assert trial(name).outcome.figures.preemptions == 0
        assert trial("throughput").outcome.figures.preemptions > 0

    def test_the_guard_of_fair_acts_within_a_day(self) -> None:
        assert NAMED_POLICIES["fair"].guard_after_s == 86_400.0


class TestRecommendation:
    def test_the_policy_with_the_least_delay_that_harms_no_project_is_chosen(self) -> None:
        found = recommend(Scenario(num_nodes=2, planner="fifo"), jobs())
        delays = {one.named(): one.delay_h for one in found.trials}
        assert found.planner in ("throughput", "fair")
        assert delays[found.planner] < 0.5 * delays["fifo"]
        assert found.command() == f"phalanx scheduler policy set {found.planner}"
        assert [one.planner for one in found.trials[:4]] == [
            *("fifo", "throughput", "fair", "deadline"),
        ]

    def test_the_present_policy_stays_unless_another_is_clearly_better(self) -> None:
        found = recommend(Scenario(num_nodes=40), jobs())
        assert found.planner == "throughput"
        assert any("not enough to change" in reason for reason in found.reasons)

    def test_a_policy_that_harms_a_project_is_not_chosen_and_the_project_is_named(self) -> None:
        now, other = trial("throughput"), trial("fifo")
        best, reasons = module._choose(now, [other])
        assert best is now
        assert "jobs of short would end after" in reasons[0]
        # Less delay in all does not outweigh the loss of one project.
        figures = replace(other.outcome.figures, delay_h=0.0)
        best, _ = module._choose(
            now, [replace(other, outcome=replace(other.outcome, figures=figures))]
        )
        assert best is now

    def test_other_quotas_are_no_limits_and_guarantees_by_use(self) -> None:
        limited = Project("short", max_slots=8, weight=2.0)
        base = Scenario(num_nodes=2, projects=(limited,))
        found = other_quotas(base, trial("throughput", base).outcome)
        assert [one.max_slots for one in found["without limits"]] == [None]
        shares = {one.name: one for one in found["guarantees by use"]}
        assert shares["long"].guaranteed_slots > shares["short"].guaranteed_slots
        assert sum(one.guaranteed_slots for one in shares.values()) <= 0.8 * 16
        assert (shares["short"].max_slots, shares["short"].weight) == (8, 2.0)
        assert other_quotas(Scenario(num_nodes=2), run(Scenario(num_nodes=2), jobs()[:2])) == {}

    def test_a_project_file_of_the_quotas_can_be_applied(self) -> None:
        made = [Project("a", 8, 2.0, 16, 4), Project("b", 4, parent="a", max_running=3)]
        import yaml

        file = read_projects(yaml.safe_load(project_file(made)))
        assert [one.to_core() for one in file.projects] == made


class TestProgram:
    def test_it_prints_reasons_and_sets_the_policy(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[Path, str]] = []
        monkeypatch.setattr(program, "_set_policy", lambda *given: asked.append(given))
        words = [*SMALL, "--recommend", "--planner", "fifo", "--write", "--home", str(tmp_path)]
        assert main(words) == 0
        said = capsys.readouterr().out
        (line,) = [one for one in said.splitlines() if one.startswith("recommended: ")]
        policy = line.split()[1]
        assert asked == [(tmp_path, policy)]
        assert "(now fifo)" in line
        assert "evictions" in said and "beside" in said

    def test_json_has_every_replay(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*SMALL, "--recommend", "--json", "--quota", "team-0=32"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["command"] == f"phalanx scheduler policy set {found['policy']}"
        assert len(found["trials"]) == 6
        projects = found["trials"][0]["projects"]
        assert {"delay_h", "delay_p99_h", "preemptions", "useful"} <= set(projects[0])
        assert all(0.0 < one["useful"] <= 1.0 for one in projects)

    def test_a_wrong_policy_and_a_write_without_a_recommendation_are_one_line(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*SMALL, "--recommend", "--planner", "quick"]) == 1
        assert "known: throughput, fair, fifo, deadline" in capsys.readouterr().err
        assert main([*SMALL, "--write"]) == 1
        assert "--write needs --recommend" in capsys.readouterr().err

    def test_a_what_if_of_the_policy_is_one_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--policy", "fifo-skip,phalanx", "--what-if", "planner=fair", "--json"]
        assert main([*SMALL, *words]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["policy"] for row in rows] == [
            *("fifo-skip", "phalanx", "phalanx [planner=fair]")
        ]
        assert changed(Scenario(policy="las"), "planner=fair").policy == "phalanx"


def test_past_jobs_are_replayed_with_the_projects_and_the_policy_of_their_home(
    tmp_path: Path,
) -> None:
    file = HomeLayout(tmp_path).database_file
    file.parent.mkdir(parents=True)
    store = open_store(file)
    spec = ProjectSpec(name="vision", guaranteed_slots=8, max_slots=16)

    def work(tx: Tx) -> None:
        resources.projects.put(tx, [Applied("vision", spec.model_dump(mode="json"), 1, "me")])
        quotas.users.put(tx, [Applied("default", {"max_running": 2}, 1, "me")])
        planning.put_policy(tx, StoredPolicy("fair", 1, "me"))

    assert store.view(planning.stored_policy) is None
    store.transact(work)
    store.close()
    assert history.past_projects(tmp_path) == [Project("vision", 8, max_slots=16)]
    assert history.past_users(tmp_path) == (UserQuota(max_running=2),)
    assert history.past_policy(tmp_path) == "fair"
    asked = program.parser().parse_args(["--past", "--home", str(tmp_path)])
    assert program._scenario(asked).planner == "fair"
    assert program._scenario(asked).users == (UserQuota(max_running=2),)
    asked.planner = "fifo"
    assert program._scenario(asked).planner == "fifo"


def test_a_job_beyond_the_quota_of_its_user_is_refused_before_the_replay() -> None:
    wanted = TraceJob(1, 0.0, 60.0, GangShape(1, 4, 4), user="ada")
    with pytest.raises(UserError, match="job 1 needs 4 slots; user ada may hold 2"):
        run(Scenario(num_nodes=1, users=(UserQuota("ada", max_slots=2),)), [wanted])
    users = (UserQuota(max_running=1),)
    both = [wanted, TraceJob(2, 0.0, 60.0, GangShape(1, 4, 4), user="ada")]
    alone = run(Scenario(num_nodes=1), both).result.runs
    limited = run(Scenario(num_nodes=1, users=users), both).result.runs
    assert alone[2].first_start_s == alone[1].first_start_s
    assert (limited[2].first_start_s or 0) >= (limited[1].end_s or 0) > 0
