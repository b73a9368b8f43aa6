"""Room below the limits of a project: victims of its own, or a reservation until its jobs end.

A job at a limit may preempt jobs of the project that the limit belongs to, and of its parts, by the rules
that hold in the pool; jobs of other projects never leave for it. Nothing is preempted unless the job then
fits below all its limits and on nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.model.planning_input import QueuedJob
from phalanx.core.scheduling.search.candidate_set import CandidateSet, PendingGang
from phalanx.core.scheduling.search.candidates import may_evict
from phalanx.core.scheduling.search.ledger import Ledger, QuotaClaim
from phalanx.core.scheduling.search.narrow_ledger import JOBS, SLOTS, QuotaReservation
from phalanx.core.scheduling.search.openings import OpeningSearch
from phalanx.core.scheduling.search.victim_search import VictimSearch
from phalanx.core.scheduling.search.victims import (
    VictimPlan,
    cheapest_plan,
    pending,
    without_needless,
)


def at_least_size(job: QueuedJob) -> QueuedJob:
    """Return an elastic job as a rigid one of its least size."""
    if job.min_nodes is None:
        return job
    shape = job.shape
    return replace(
        job,
        shape=GangShape(job.min_nodes, shape.slots_per_node, shape.ranks_per_node),
        min_nodes=None,
    )


def find_quota_victims(
    search: VictimSearch,
    eq_class: EquivalenceClass,
    since: int,
    num: int,
    claim: QuotaClaim,
    overdue: bool = False,
) -> VictimPlan | None:
    """Return the cheapest victims within the limits of a job's project, or None if there are none."""
    job = at_least_size(search.cluster.waiting[num])
    key = (job.project, job.user, job.priority, eq_class.request_num)
    if key in search.fruitless_at_limit:
        return None
    gang = pending(search, eq_class, job, since, overdue)
    candidates = _candidates(search, gang, claim)
    found = None
    if claim.is_covered(_freed(search, candidates.prices)):
        found = cheapest_plan(search, eq_class, job, candidates)
    if found is None:
        search.fruitless_at_limit.add(key)
        return None
    victims = found.victims + _more(search, claim, found.victims, candidates)
    kept = without_needless(
        search, job, found.nodes, victims, candidates, lambda left: _covers(search, claim, left)
    )
    prices = [candidates.prices[victim] for victim in kept]
    return VictimPlan(sum(prices), found.nodes, kept, prices)


def _candidates(search: VictimSearch, gang: PendingGang, claim: QuotaClaim) -> CandidateSet:
    """Return the running jobs below the limits of a claim that the gang may preempt, with prices."""
    found, cluster, ledger = CandidateSet(), search.cluster, search.ledger
    for _, ranked in sorted(cluster.preemptible(search.now).items()):
        for score, num in ranked:
            held = cluster.held[num]
            search.decisions.num_steps += 1
            if num in search.decisions.leaving:
                continue
            if not claim.concerns(ledger.charges(held, held.num_slots)):
                continue
            if may_evict(search, gang, held, score):
                found.add(cluster, num, search.price(held))
    return found


def _freed(search: VictimSearch, victims: Iterable[int]) -> dict[str, list[int]]:
    """Return the slots and jobs, by project, that these victims free."""
    freed: dict[str, list[int]] = {}
    for num in victims:
        held = search.cluster.held[num]
        for name, slots in search.ledger.charges(held, held.num_slots):
            got = freed.setdefault(name, [0, 0])
            got[SLOTS] += slots
            got[JOBS] += 1
    return freed


def _covers(search: VictimSearch, claim: QuotaClaim, victims: list[int]) -> bool:
    return claim.is_covered(_freed(search, victims))


def _more(
    search: VictimSearch, claim: QuotaClaim, chosen: list[int], candidates: CandidateSet
) -> list[int]:
    """Return further victims until every limit is kept: the cheapest per slot, narrow limits first."""
    held_by = search.cluster.held
    freed, more = _freed(search, chosen), list[int]()
    ranked = sorted(
        (price / max(held_by[num].num_slots, 1), num)
        for num, price in candidates.prices.items()
        if num not in chosen
    )
    for name, (slots, jobs) in claim.excess.items():
        for _, num in ranked:
            got = freed.get(name, [0, 0])
            if got[SLOTS] >= slots and got[JOBS] >= jobs:
                break
            freed_by = _freed(search, [num])
            if num in more or name not in freed_by:
                continue
            more.append(num)
            for part, amounts in freed_by.items():
                known = freed.setdefault(part, [0, 0])
                known[SLOTS] += amounts[SLOTS]
                known[JOBS] += amounts[JOBS]
    return more


# -- reservations ----------------------------------------------------------------------------------


def keep_room(openings: OpeningSearch, ledger: Ledger, job: QueuedJob, overdue: bool) -> int | None:
    """Keep room below every limit on slots of a blocked job; return when it can start, or None.

    As under EASY backfill, the time is that at which expected ends free enough slots below all limits.
    Other jobs may start if they end before it, or fit beside the job at that time. One job at a time
    has such room below a limit; the time is `NEVER` if it is unknown.
    """
    share = ledger.shares.get(job.project)
    limits = {
        one.name: one.max_slots - job.least_slots
        for one in (() if share is None else share.lineage)
        if one.max_slots is not None and one.name not in ledger.kept
    }
    left = {name: most - ledger.used.get(name, 0) for name, most in limits.items()}
    narrow = ledger.narrow
    below = {} if narrow is None else narrow.room_below(job)
    if narrow is not None:
        left |= {key: most - narrow.used.get(key, 0) for key, most in below.items()}
    if not left or min([*limits.values(), *below.values()]) < 0:
        return None
    ready_at = openings.now
    for at, num in openings.ends(job if overdue else None):
        if at > ready_at and min(left.values()) >= 0:
            break
        held = openings.cluster.held[num]
        openings.decisions.num_steps += 1
        for name, slots in ledger.charges(held, held.num_slots):
            if name in left and num not in openings.decisions.leaving:
                left[name] += slots
                ready_at = max(ready_at, at) if left[name] - slots < 0 else ready_at
    if min(left.values()) < 0:
        ready_at = NEVER
    for name, extra in left.items():
        kept = ledger.kept if narrow is None or name not in below else narrow.kept
        kept[name] = QuotaReservation(job.num, ready_at, max(extra, 0))
    return ready_at
