"""The platform and its live jobs as Prometheus text.

Cardinality is bounded: live jobs only, `MAX_RANKS` ranks in all and `MAX_RANKS_OF_A_JOB` of one job, and
`MAX_QUOTAS` quotas; how many are left out is itself a gauge. The series of a job are dropped when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from phalanx.core.cost.anomaly_life import LIVE, CostAnomaly
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.core.jobs.model import JobState
from phalanx.core.quotas.usage import QuotaUse
from phalanx.core.scaling.model import PoolScaling, ScalingPolicy
from phalanx.core.telemetry.instruments import INSTRUMENTS, Instrument, Kind
from phalanx.kit.text import job_label
from phalanx.schemas.api.pools import PoolView
from phalanx.server.observe.fleet import PlatformCounters
from phalanx.server.observe.training import ACCURACIES, LOSSES, MAX_RANKS, JobSeries, RankSeries
from phalanx.services.cost.anomalies import live_anomalies
from phalanx.services.platform import Platform
from phalanx.services.queries import feed, views
from phalanx.services.queries.feed import Cursors, LiveJob, Present
from phalanx.services.quotas.usage import slot_types, uses_now
from phalanx.services.resources import inventory
from phalanx.services.resources.scaling import scaling_states
from phalanx.store.database import Tx
from phalanx.store.retention import deletions

_US = 1e-6
_PER_JOB = ["project", "job"]
_PER_RANK = ["project", "job", "rank"]
# After more pages than this, counting starts again instead of reading for minutes.
_MAX_PAGES = 200
MAX_QUOTAS = 500
"""The most quotas that have series."""
MAX_ANOMALIES = 100
"""The most anomalies of cost that have series of their own."""


class Exposition:
    """Keeps counters and read positions between scrapes. One per control plane."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._lock = threading.Lock()
        self._cursors: Cursors | None = None
        self._fleet = PlatformCounters()
        self._jobs: dict[int, JobSeries] = {}

    def scrape(self, now: int) -> bytes:
        """All metrics in the text format. `now` is in microseconds UTC."""
        with self._lock:
            there = feed.present(self._platform)
            self._catch_up(there)
            pools = inventory.list_pools(self._platform)
            families = [*self._platform_families(there, pools, now), *self._training(there)]
            types = slot_types(self._platform)
            uses = self._platform.store.view(lambda tx: uses_now(self._platform, tx, types))
            families += _quota_families(uses)
            families += _scaling_families(scaling_states(self._platform))
            families += _anomaly_families(live_anomalies(self._platform))
            families += _removal_families(*self._platform.store.view(_removals))
        return generate_latest(_Families(families))

    # -- reading on ------------------------------------------------------------------------------

    def _catch_up(self, there: Present) -> None:
        live = {one.stored.job.num for one in there.live}
        if self._cursors is None:
            self._begin(there)
        for _ in range(_MAX_PAGES):
            assert self._cursors is not None
            page = feed.news(self._platform, self._cursors)
            self._cursors = page.cursors
            self._fleet.add_events(page.events)
            self._fleet.add_checkpoints(page.checkpoints)
            for chunk in page.chunks:
                if chunk.job in live:
                    self._jobs.setdefault(chunk.job, JobSeries()).add(chunk.points)
            if not page.more:
                break
        else:
            self._cursors = feed.newest(self._platform)
        for num in set(self._jobs) - live:
            del self._jobs[num]

    def _begin(self, there: Present) -> None:
        self._cursors = feed.newest(self._platform)
        for stored in [*there.queued, *(one.stored for one in there.live)]:
            self._fleet.register(stored.job)
        for one in there.live:
            series = self._jobs.setdefault(one.stored.job.num, JobSeries())
            series.show(feed.newest_points(self._platform, one.stored.job.num))

    # -- the platform ----------------------------------------------------------------------------

    def _platform_families(
        self, there: Present, pools: Sequence[PoolView], now: int
    ) -> Iterator[Metric]:
        fleet = self._fleet
        by_state = GaugeMetricFamily("phalanx_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            by_state.add_metric([state.value], there.by_state.get(state.value, 0))
        yield by_state
        yield GaugeMetricFamily("phalanx_queue_length", "Queued jobs", value=len(there.queued))
        oldest = min((one.job.submitted_at for one in there.queued), default=now)
        yield GaugeMetricFamily(
            "phalanx_queue_oldest_seconds",
            "Age of the oldest queued job",
            value=max(0, now - oldest) * _US,
        )
        yield HistogramMetricFamily(
            "phalanx_queue_wait_seconds",
            "Time from queue to placement",
            buckets=fleet.waits.cumulative(),
            sum_value=fleet.waits.total,
        )
        yield CounterMetricFamily("phalanx_jobs_submitted", "Jobs submitted", value=fleet.submitted)
        yield _counts("phalanx_jobs_finished", "Ended jobs by state", "state", fleet.finished)
        yield _counts("phalanx_restarts", "Restarts of jobs by cause", "cause", fleet.restarts)
        yield _counts("phalanx_checkpoints", "Checkpoints by outcome", "outcome", fleet.checkpoints)
        saved = fleet.checkpoint_bytes
        yield CounterMetricFamily(
            "phalanx_checkpoint_bytes", "Bytes of committed checkpoints", value=saved
        )
        yield HistogramMetricFamily(
            "phalanx_checkpoint_save_seconds",
            "Time to save a checkpoint",
            buckets=fleet.saves.cumulative(),
            sum_value=fleet.saves.total,
        )
        yield _counts("phalanx_resumes", "Resumes from a checkpoint", "outcome", fleet.resumed)
        yield from _pool_families(pools)

    # -- training --------------------------------------------------------------------------------

    def _training(self, there: Present) -> Iterator[Metric]:
        shown: list[tuple[list[str], RankSeries]] = []
        num_ranks = 0
        for one in there.live:
            num_ranks += views.world_size(one.stored)
            series = self._jobs.get(one.stored.job.num, JobSeries())
            for rank, values in sorted(series.ranks.items()):
                if len(shown) < MAX_RANKS:
                    shown.append(([*_labels(one), str(rank)], values))
        yield GaugeMetricFamily(
            "phalanx_ranks_not_shown",
            "Ranks of live jobs without series",
            value=max(0, num_ranks - len(shown)),
        )
        for instrument in INSTRUMENTS.values():
            yield _family(instrument, shown)
        yield from self._job_families(there.live)

    def _job_families(self, live: Sequence[LiveJob]) -> Iterator[Metric]:
        step = GaugeMetricFamily("training_step", "Optimizer steps done", labels=_PER_JOB)
        epoch = GaugeMetricFamily("training_epoch", "Epochs begun", labels=_PER_JOB)
        loss = GaugeMetricFamily("training_loss", "Newest loss of rank 0", labels=_PER_JOB)
        right = GaugeMetricFamily("training_accuracy", "Newest accuracy of rank 0", labels=_PER_JOB)
        other = GaugeMetricFamily(
            "training_metric", "Metrics that the script logs, on rank 0", labels=[*_PER_JOB, "name"]
        )
        back = CounterMetricFamily(
            "phalanx_job_restarts", "Restarts of a live job", labels=[*_PER_JOB, "cause"]
        )
        for one in live:
            labels = _labels(one)
            series = self._jobs.get(one.stored.job.num, JobSeries())
            for family, value in (
                (step, one.step),
                (epoch, one.epoch),
                (loss, series.first_of(LOSSES)),
                (right, series.first_of(ACCURACIES)),
            ):
                if value is not None:
                    family.add_metric(labels, value)
            for name, value in sorted(series.values.items()):
                other.add_metric([*labels, name], value)
            for cause, num in self._fleet.job_restarts.get(one.stored.job.num, {}).items():
                back.add_metric([*labels, cause], num)
        yield from (step, epoch, loss, right, other, back)


class _Families:
    """The registry interface that the Prometheus library expects."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def _labels(one: LiveJob) -> list[str]:
    return [one.stored.facts.project, job_label(one.stored.job.num)]


def _counts(name: str, text: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family


def _pool_families(pools: Sequence[PoolView]) -> Iterator[Metric]:
    slots = GaugeMetricFamily("phalanx_pool_slots", "Slots of a pool", labels=["pool"])
    free = GaugeMetricFamily("phalanx_pool_slots_free", "Free slots of a pool", labels=["pool"])
    for one in pools:
        slots.add_metric([one.name], one.num_slots)
        free.add_metric([one.name], one.num_free)
    yield from (slots, free)


def _scaling_families(
    found: Mapping[str, tuple[ScalingPolicy, PoolScaling]],
) -> Iterator[Metric]:
    """Nodes, open requests, cost and decisions of the pools that their clusters grow."""
    nodes = GaugeMetricFamily(
        "phalanx_scaling_nodes", "Nodes of a pool that scales, by state", labels=["pool", "state"]
    )
    most = GaugeMetricFamily("phalanx_scaling_max_nodes", "Most nodes of a pool", labels=["pool"])
    waits = GaugeMetricFamily(
        "phalanx_scaling_gangs_without_nodes",
        "Waiting gangs with a failed request for nodes",
        labels=["pool"],
    )
    spent = GaugeMetricFamily(
        "phalanx_scaling_spent_today_usd", "Cost of the nodes since midnight UTC", labels=["pool"]
    )
    decisions = CounterMetricFamily(
        "phalanx_scaling_decisions", "Decisions about the size of a pool", labels=["pool", "kind"]
    )
    for name, (policy, state) in sorted(found.items()):
        requested = sum(one.gang.num_new for one in state.claims)
        counts = {"present": len(state.nodes), "requested": requested}
        counts |= {"released": len(state.released), "draining": len(state.leaving)}
        for kind, count in counts.items():
            nodes.add_metric([name, kind], count)
        most.add_metric([name], policy.max_nodes)
        waits.add_metric([name], len(state.failed))
        spent.add_metric([name], state.spent_nano / NANO)
        for kind, count in state.counts:
            decisions.add_metric([name, kind], count)
    yield from (nodes, most, waits, spent, decisions)


def _quota_families(uses: Sequence[QuotaUse]) -> Iterator[Metric]:
    """Use and limit of the quotas, those that are used most where there are many."""
    labels = ["project", "user", "slot_type", "unit"]
    used = GaugeMetricFamily("phalanx_quota_used", "What counts against a quota", labels=labels)
    limit = GaugeMetricFamily("phalanx_quota_limit", "The most that a quota allows", labels=labels)
    for one in sorted(uses, key=lambda one: (-one.percent, one.key))[:MAX_QUOTAS]:
        place = [one.key.project, one.key.user, one.key.slot_type, one.key.unit.value]
        used.add_metric(place, one.used)
        limit.add_metric(place, one.most)
    yield from (used, limit)
    yield GaugeMetricFamily(
        "phalanx_quotas_not_shown", "Quotas without series", value=max(0, len(uses) - MAX_QUOTAS)
    )


def _anomaly_families(found: Sequence[CostAnomaly]) -> Iterator[Metric]:
    """Anomalies of cost that are not closed, and the extra amounts of the largest ones."""
    number = GaugeMetricFamily(
        "phalanx_cost_anomalies", "Anomalies of cost that are not closed", labels=["state"]
    )
    for state in LIVE:
        number.add_metric([state.value], sum(one.state is state for one in found))
    labels = ["scope", "name", "state"]
    usd = GaugeMetricFamily(
        "phalanx_cost_anomaly_extra_usd", "US dollars above the expectation", labels=labels
    )
    hours = GaugeMetricFamily(
        "phalanx_cost_anomaly_extra_slot_hours", "Slot-hours above the expectation", labels=labels
    )
    for one in sorted(found, key=lambda one: -one.extra)[:MAX_ANOMALIES]:
        place = [one.key.scope.value, one.key.name, one.state.value]
        if one.in_money:
            usd.add_metric(place, one.extra / NANO)
        else:
            hours.add_metric(place, one.extra / HOUR_US)
    yield from (number, usd, hours)


def _removals(tx: Tx) -> tuple[dict[tuple[str, str], tuple[int, int]], int]:
    return deletions.totals(tx), deletions.count_open(tx)


def _removal_families(
    totals: dict[tuple[str, str], tuple[int, int]], num_open: int
) -> Iterator[Metric]:
    """What requests and retention have deleted, since the database was made."""
    labels = ["kind", "cause"]
    items = CounterMetricFamily("phalanx_removed_items", "Deleted items of a kind", labels=labels)
    size = CounterMetricFamily("phalanx_removed_bytes", "Deleted bytes of a kind", labels=labels)
    for place, (count, num_bytes) in sorted(totals.items()):
        items.add_metric(list(place), count)
        size.add_metric(list(place), num_bytes)
    yield from (items, size)
    yield GaugeMetricFamily(
        "phalanx_deletions_open", "Deleted jobs with data that is left", value=num_open
    )


def _family(instrument: Instrument, shown: Sequence[tuple[list[str], RankSeries]]) -> Metric:
    name = instrument.name
    labels = [*_PER_RANK, *(label for label, _ in instrument.labels)]
    fixed = [value for _, value in instrument.labels]
    if instrument.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, instrument.help, labels=labels)
        for place, series in shown:
            one = series.distributions.get(name)
            if one is not None:
                histogram.add_metric([*place, *fixed], one.cumulative(), one.total_s)
        return histogram
    counts = instrument.kind is Kind.COUNTER
    family = (CounterMetricFamily if counts else GaugeMetricFamily)(
        name, instrument.help, labels=labels
    )
    for place, series in shown:
        values = series.counters if counts else series.gauges
        if name in values:
            family.add_metric([*place, *fixed], values[name])
    return family
