"""Start-time forecasts: the planner run forward, with known ends believed and unknown ones not guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.scheduling import PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.explain.forecast import eta
from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
NOW = 10 * HOUR
FULL = (0, 1, 2, 3)


def busy(num: int, node: int, left_s: float | None, **more: object) -> RunningJob:
    """A job that holds a node for so long and leaves it for none."""
    return running(num, {node: FULL}, **{"remaining_s": left_s, "priority": 90, **more})


def starts(
    held: tuple[RunningJob, ...], *waiting: QueuedJob, num: int = 1, num_nodes: int = 1
) -> float | None:
    """Seconds until the job starts, the same in every scenario."""
    found = eta(PlanningInput(nodes(num_nodes), held, waiting), num, NOW)
    assert found.p50_at == found.p90_at
    return None if found.p50_at is None else (found.p50_at - NOW) / US


class TestKnownEnds:
    def test_a_job_starts_at_the_end_of_what_holds_its_nodes(self) -> None:
        assert starts((busy(8, 0, 700.0),), queued(1, 1, 4)) == 700.0
        assert starts((busy(8, 0, 700.0), busy(9, 1, 300.0)), queued(1, 1, 4), num_nodes=2) == 300.0
        assert starts((busy(8, 0, 700.0), busy(9, 1, 300.0)), queued(1, 2, 4), num_nodes=2) == 700.0

    def test_a_job_starts_at_once_or_when_its_back_off_ends(self) -> None:
        assert starts((), queued(1, 1, 4)) == 0.0
        assert starts((), queued(1, 1, 4, not_before=NOW + 600 * US)) == 600.0

    def test_ends_within_half_a_minute_are_one_pass(self) -> None:
        held = (busy(8, 0, 700.0), busy(9, 1, 730.0))
        assert starts(held, queued(1, 1, 4), num_nodes=2) == 730.0
        later = (held[0], replace(held[1], remaining_s=731.0))
        assert starts(later, queued(1, 1, 4), num_nodes=2) == 700.0

    def test_jobs_in_front_run_first_for_as_long_as_they_may(self) -> None:
        first = queued(2, 1, 4, 60, max_duration_s=1000.0)
        found = starts((busy(8, 0, 700.0),), queued(1, 1, 4), first)
        assert found is not None and 1700.0 <= found <= 1700.0 * 1.06

    def test_an_end_that_is_not_known_is_not_invented(self) -> None:
        assert starts((busy(8, 0, None),), queued(1, 1, 4)) is None
        assert starts((busy(8, 0, 700.0),), queued(1, 1, 4), queued(2, 1, 4, 60)) is None
        assert starts((), queued(1, 1, 5)) is None


class TestEvictions:
    def test_victims_save_first(self) -> None:
        victim = running(8, {0: FULL}, priority=10, save_s=300.0)
        assert starts((victim,), queued(1, 1, 4)) == 300.0
        assert starts((replace(victim, save_s=0.0),), queued(1, 1, 4)) is not None

    def test_a_victim_comes_back_into_the_queue(self) -> None:
        victim = running(8, {0: FULL}, priority=10, max_duration_s=2000.0, started_at=NOW)
        first = queued(2, 1, 4, max_duration_s=3600.0)
        last = queued(1, 1, 4, 5)
        found = starts((victim,), last, first)
        # Thirty seconds of saving, the first one's hour, and all of the victim's limit once more.
        assert found is not None and 5630.0 <= found <= 5630.0 * 1.11
        # If it were less important than the last one, that one would not wait for it.
        found = starts((replace(victim, priority=4),), last, first)
        assert found is not None and 3630.0 <= found <= 3630.0 * 1.06


class TestElastic:
    def test_a_job_on_fewer_nodes_runs_longer(self) -> None:
        first = queued(2, 2, 4, 60, min_nodes=1, max_duration_s=1000.0)
        found = starts((), queued(1, 1, 4), first)
        assert found is not None and 2000.0 <= found <= 2000.0 * 1.06

    def test_nodes_that_an_elastic_job_gives_back_are_there_once_it_has_saved(self) -> None:
        held = running(8, {0: FULL, 1: FULL}, min_nodes=1, max_nodes=2)
        assert starts((held,), queued(1, 1, 4), num_nodes=2) == 30.0


class TestLearned:
    def spread(self, num_scenarios: int, short: int) -> list[float | None]:
        """Seconds until a start after a job like a hundred others: so many took 600 s, the rest 6000 s."""
        history = History()
        for at in range(100):
            history.observe(KindKey("", "", 2), 4 * (600.0 if at < short else 6000.0))
        held = (busy(8, 0, None, started_at=NOW),)
        snapshot = PlanningInput(nodes(1), held, (queued(1, 1, 4),), history=history)
        found = eta(snapshot, 1, NOW, num_scenarios)
        assert found == eta(snapshot, 1, NOW, num_scenarios)
        return [None if at is None else (at - NOW) / US for at in (found.p50_at, found.p90_at)]

    @pytest.mark.parametrize(
        ("short", "first", "last"), [(93, 600.0, 600.0), (70, 600.0, 6000.0), (20, 6000.0, 6000.0)]
    )
    def test_quantiles_are_those_of_the_scenarios(
        self, short: int, first: float, last: float
    ) -> None:
        bounds = [EDGES[bin_of(4 * each) + 1] / 4 for each in (first, last)]
        for found, bound in zip(self.spread(21, short), bounds, strict=True):
            assert found is not None and bound * 0.999 <= found <= bound * 1.06

    def test_one_scenario_has_one_answer(self) -> None:
        first, last = self.spread(1, 50)
        assert first == last is not None
