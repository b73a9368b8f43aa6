"""The series of live jobs and their ranks, within the limit of series of one scrape.

Jobs come in the order of their numbers, so that the same ones are shown at each scrape. First each job
has its gauges, then ranks have theirs, then jobs have their histograms: the largest part is cut first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.core.contract.checkpointing import SaveInterval
from phalanx.core.metrics import training as limits
from phalanx.core.metrics.training import SECTION, STEP_TIME, exposed_name
from phalanx.core.slo.objectives import class_name
from phalanx.core.telemetry.instruments import BOUNDS, INSTRUMENTS, OF_NODE
from phalanx.kit.text import job_label
from phalanx.server.observe.sheet import Sheet
from phalanx.server.observe.training import ACCURACIES, LOSSES, JobSeries, RankSeries
from phalanx.services.queries import views
from phalanx.services.queries.feed import LiveJob

_BUCKETS = len(BOUNDS) + 3
_GAUGES_OF_A_JOB = 12
_US = 1e-6
LEVELS = ("job", "rank", "histogram")


class LiveSeries:
    """Adds the series of live jobs to a sheet until it has `max_series`, and counts the others."""

    def __init__(self, sheet: Sheet, max_series: int) -> None:
        self._sheet = sheet
        self._max = max_series
        self._cut = dict.fromkeys(LEVELS, 0)

    def put(self, live: Sequence[LiveJob], known: Mapping[int, JobSeries], now: int) -> None:
        """Add the series of these jobs."""
        ordered = sorted(live, key=lambda one: one.stored.job.num)
        shown = [
            one
            for at, one in enumerate(ordered)
            if self._fits("job", _size_of_job(one, known), at < limits.MAX_JOBS)
            and self._put_job(one, known.get(one.stored.job.num), now)
        ]
        self._sheet.put("phalanx_jobs_not_shown", len(live) - len(shown))
        self._put_ranks(shown, known, sum(views.world_size(one.stored) for one in live))
        for one in shown:
            series = known.get(one.stored.job.num)
            if series is not None:
                self._put_sections(one, series)
        for level, count in self._cut.items():
            self._sheet.put("phalanx_series_not_shown", count, level)

    def _fits(self, level: str, size: int, allowed: bool = True) -> bool:
        """Whether so many series may be added; where not, they are counted as left out."""
        if allowed and self._sheet.num_series + size <= self._max:
            return True
        self._cut[level] += size
        return False

    # -- jobs ------------------------------------------------------------------------------------

    def _put_job(self, one: LiveJob, series: JobSeries | None, now: int) -> bool:
        labels, job, sheet = _labels(one), one.stored.job, self._sheet
        attempt = job.attempt
        pool = "" if attempt is None else attempt.placement.pool
        facts = one.stored.facts
        of_job = (job.state.value, pool, facts.owner, class_name(facts.spec))
        sheet.put("phalanx_job_info", 1, *labels, *of_job)
        series = series or JobSeries()
        for name, value in (
            ("training_step", one.step),
            ("training_epoch", one.epoch),
            ("training_loss", series.first_of(LOSSES)),
            ("training_accuracy", series.first_of(ACCURACIES)),
            ("phalanx_job_slots", None if attempt is None else attempt.num_slots),
            ("phalanx_job_ranks", views.world_size(one.stored)),
            ("phalanx_job_checkpoint_step", job.progress.checkpoint_step),
            *_saves(one, now),
            ("phalanx_job_restarts", job.restarts),
            ("phalanx_job_attempts", job.attempts),
        ):
            if value is not None:
                sheet.put(name, value, *labels)
        for name, logged in sorted(series.values.items()):
            sheet.put("training_metric", logged, *labels, name)
        return True

    def _put_sections(self, one: LiveJob, series: JobSeries) -> None:
        labels = _labels(one)
        for name, found in series.sections.items():
            if self._fits("histogram", _BUCKETS):
                fixed = (value for _, value in INSTRUMENTS[name].labels)
                self._sheet.put_histogram(name, found.cumulative(), found.total_s, *labels, *fixed)

    # -- ranks -----------------------------------------------------------------------------------

    def _put_ranks(
        self, shown: Sequence[LiveJob], known: Mapping[int, JobSeries], num_ranks: int
    ) -> None:
        num_shown = 0
        for one in shown:
            series = known.get(one.stored.job.num, JobSeries())
            nodes = views.nodes_of_first_ranks(one.stored)
            for rank, values in sorted(series.ranks.items()):
                if self._fits("rank", _size_of_rank(values), num_shown < limits.MAX_RANKS):
                    self._put_rank([*_labels(one), str(rank)], values)
                    if rank in nodes:
                        self._put_node([*_labels(one), nodes[rank]], values)
                    num_shown += 1
        self._sheet.put("phalanx_ranks_not_shown", max(0, num_ranks - num_shown))

    def _put_rank(self, labels: list[str], series: RankSeries) -> None:
        put: Callable[..., None] = self._sheet.put
        for name, value in (*series.gauges.items(), *series.counters.items()):
            if name in OF_NODE:
                continue
            instrument = INSTRUMENTS[name]
            fixed = (given for _, given in instrument.labels)
            put(exposed_name(instrument), value, *labels, *fixed)
        for name, value in series.means.items():
            if name == STEP_TIME:
                continue  # it is the whole, and has a histogram
            put(SECTION, value, *labels, name.removesuffix("_seconds").removesuffix("_time"))
        if series.steps is not None:
            steps = series.steps
            self._sheet.put_histogram(STEP_TIME, steps.cumulative(), steps.total_s, *labels)

    def _put_node(self, labels: list[str], series: RankSeries) -> None:
        for name, value in (*series.gauges.items(), *series.counters.items()):
            if name in OF_NODE:
                self._sheet.put(name, value, *labels)


def _saves(one: LiveJob, now: int) -> Iterator[tuple[str, float]]:
    """The age of the newest checkpoint of a job that runs, and the interval of its saves."""
    if one.saved_at is None or one.up_at is None:
        return
    age_us = now - max(one.saved_at, one.up_at)
    yield "phalanx_job_checkpoint_age_seconds", max(0, age_us) * _US
    policy = one.stored.facts.spec.get("checkpoint") or {}
    every = SaveInterval.parse(str(policy.get("every", "")))
    if every.seconds is not None and not every.auto:
        yield "phalanx_job_checkpoint_interval_seconds", every.seconds
    elif one.saved_before_at is not None:
        gap_us = one.saved_at - one.saved_before_at
        yield "phalanx_job_checkpoint_interval_seconds", max(0, gap_us) * _US


def _labels(one: LiveJob) -> list[str]:
    # `job` is a label of Prometheus' own, too: where a scrape keeps that one, `phalanx_job` is left.
    label = job_label(one.stored.job.num)
    return [one.stored.facts.project, label, label]


def _size_of_job(one: LiveJob, known: Mapping[int, JobSeries]) -> int:
    series = known.get(one.stored.job.num)
    return _GAUGES_OF_A_JOB + (0 if series is None else len(series.values))


def _size_of_rank(series: RankSeries) -> int:
    buckets = 0 if series.steps is None else _BUCKETS
    return len(series.gauges) + len(series.counters) + len(series.means) + buckets
