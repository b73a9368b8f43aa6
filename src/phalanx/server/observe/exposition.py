"""The platform and its live jobs as Prometheus text.

What is counted over time comes from the database, so that all replicas export the same totals. Sums over
what ranks report are of this process, and begin with it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from phalanx.core.cost.totals import Totals
from phalanx.core.notify.samples import Series
from phalanx.server.context import Context
from phalanx.server.observe import platform as families
from phalanx.server.observe.live import LiveSeries
from phalanx.server.observe.process import put_process, put_shared
from phalanx.server.observe.sheet import Sheet
from phalanx.server.observe.training import JobSeries
from phalanx.services.cost.anomalies import live_anomalies
from phalanx.services.cost.budgets import list_budgets
from phalanx.services.queries import feed
from phalanx.services.queries.feed import Present
from phalanx.services.quotas.usage import slot_types, uses_now
from phalanx.services.resources import inventory
from phalanx.services.resources.scaling import scaling_states
from phalanx.store import events, outbox, resources, telemetry
from phalanx.store.cost import days
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Touched, Tx
from phalanx.store.engines.totals import Exemplar, TotalKey, read_totals
from phalanx.store.logs import senders
from phalanx.store.logs.senders import StoredSender
from phalanx.store.retention import deletions

# After more pages than this, counting starts again instead of reading for minutes.
_MAX_PAGES = 200


@dataclass(frozen=True, slots=True)
class _Stored:
    """What one scrape reads from the database, in one snapshot."""

    there: Present  # jobs that are queued or live
    totals: dict[TotalKey, float]  # counters and histograms that are kept over time
    costs: dict[str, Totals]  # by project
    removed: dict[tuple[str, str], tuple[int, int]]  # items and bytes, by kind and cause
    num_deletions: int  # that are not complete
    log_bytes: int  # of stored output
    senders: dict[str, StoredSender]  # of output to other log stores, by name
    last_event: int  # its place in the feed
    commands: tuple[int, int | None]  # open ones, and when the oldest was made


def _no_costs(tx: Tx, there: Present) -> dict[str, Totals]:
    """Nothing for each project that is set up or has jobs: its first cost must be an increase."""
    names = {one.name for one in resources.projects.now(tx)}
    names |= {one.facts.project for one in there.queued}
    names |= {one.stored.facts.project for one in there.live}
    return {name: Totals() for name in names}


def _stored(tx: Tx) -> _Stored:
    there = feed.present(tx)
    return _Stored(
        there=there,
        totals=read_totals(tx.conn),
        costs=_no_costs(tx, there) | days.sums(tx, "project", CostFilter()),
        removed=deletions.totals(tx),
        num_deletions=deletions.count_open(tx),
        log_bytes=telemetry.stored_bytes(tx),
        senders=senders.every(tx),
        last_event=events.last_feed(tx),
        commands=outbox.open_since(tx),
    )


class Exposition:
    """Keeps the sums of live jobs and the read position between scrapes. One per control plane."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._platform = context.platform
        self._lock = threading.Lock()
        self._exemplars_lock = threading.Lock()
        self._chunk: int | None = None
        self._jobs: dict[int, JobSeries] = {}
        self._took_s = 0.0
        # Of what this process has committed; as many as there are buckets.
        self._exemplars: dict[TotalKey, Exemplar] = {}
        self._platform.store.on_commit(self._learn)

    def _learn(self, touched: Touched) -> None:
        if touched.totals.exemplars:
            with self._exemplars_lock:
                self._exemplars |= touched.totals.exemplars

    def scrape(self, now: int, *, openmetrics: bool = False) -> bytes:
        """All metrics as text; with `openmetrics` in that format, which has exemplars.

        `now` is in microseconds UTC.
        """
        with self._exemplars_lock:
            exemplars = dict(self._exemplars)
        with self._lock:
            began = self._context.clock.monotonic()
            sheet = self._filled(now, Sheet(exemplars, openmetrics=openmetrics))
            sheet.put("phalanx_scrape_seconds", self._took_s)
            sheet.put("phalanx_scrape_series", sheet.num_series + 1)
            text = sheet.text()
            self._took_s = max(0.0, self._context.clock.monotonic() - began)
        return text

    def samples(self, now: int, names: Collection[str]) -> dict[Series, float]:
        """The samples of these exported names, as a scrape would contain them."""
        with self._lock:
            return self._filled(now, Sheet()).samples(names)

    def _filled(self, now: int, sheet: Sheet) -> Sheet:
        stored = self._platform.store.view(_stored)
        self._catch_up(stored.there)
        self._put_platform(sheet, stored, now)
        put_process(sheet, self._context)
        max_series = self._context.settings.metrics.max_series
        LiveSeries(sheet, max_series).put(stored.there.live, self._jobs, now)
        return sheet

    # -- reading on ------------------------------------------------------------------------------

    def _catch_up(self, there: Present) -> None:
        live = {one.stored.job.num for one in there.live}
        if self._chunk is None:
            self._chunk = feed.newest_chunk(self._platform)
            for num in live:
                self._jobs.setdefault(num, JobSeries()).show(
                    feed.newest_points(self._platform, num)
                )
        for _ in range(_MAX_PAGES):
            page, more = feed.new_chunks(self._platform, self._chunk)
            for chunk in page:
                self._chunk = chunk.id
                if chunk.job in live:
                    self._jobs.setdefault(chunk.job, JobSeries()).add(chunk.columns)
            if not more:
                break
        else:
            self._chunk = feed.newest_chunk(self._platform)
        for num in set(self._jobs) - live:
            del self._jobs[num]

    # -- the platform ----------------------------------------------------------------------------

    def _put_platform(self, sheet: Sheet, stored: _Stored, now: int) -> None:
        families.put_jobs(sheet, stored.there, now)
        sheet.put_totals(families.with_classes(stored.totals, self._platform.classes))
        pools, nodes = inventory.list_pools(self._platform), inventory.list_nodes(self._platform)
        families.put_pools(sheet, pools, nodes)
        families.put_probes(sheet, self._platform, now)
        families.put_scaling(sheet, scaling_states(self._platform))
        types = slot_types(self._platform)
        uses = self._platform.store.view(lambda tx: uses_now(self._platform, tx, types))
        families.put_quotas(sheet, uses)
        families.put_budgets(sheet, list_budgets(self._platform, None, now))
        families.put_cost(sheet, stored.costs, live_anomalies(self._platform))
        families.put_removals(sheet, stored.removed, stored.num_deletions)
        configured = [one.name for one in self._context.log_senders.senders]
        families.put_senders(sheet, {name: stored.senders.get(name) for name in configured}, now)
        families.put_output(sheet, stored.log_bytes, self._platform.retention.log_bytes)
        put_shared(
            sheet,
            self._context,
            last_event=stored.last_event,
            commands=stored.commands,
            now=now,
        )
