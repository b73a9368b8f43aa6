"""Which running jobs a pending gang may preempt: lower priorities, outweighed peers, borrowed slots."""

from __future__ import annotations

from bisect import bisect_left
from math import isinf

from phalanx.core.scheduling.model.entitlement import EntitlementTier
from phalanx.core.scheduling.model.planning_input import US, PlannerConfig, RunningJob
from phalanx.core.scheduling.search.candidate_set import (
    CandidateSet,
    IncrementalCandidateSet,
    PeerCandidates,
    PendingGang,
)
from phalanx.core.scheduling.search.large_jobs import is_large
from phalanx.core.scheduling.search.victim_search import VictimSearch


def candidate_set(search: VictimSearch, gang: PendingGang) -> CandidateSet:
    """Return the jobs that this gang outweighs, with prices. Copy the set before changing it."""
    if search.shares:
        return _across_projects(search, gang)
    peers = _peers(search, gang.job.priority)
    num = peers.num_below(gang, search.config.hysteresis)
    bound = search.config.lost_per_need * gang.need_slot_s(search.config)
    if gang.guarded or gang.overdue or peers.most_lost > bound:
        return _built(search, gang)
    search.decisions.num_steps += num
    score = search.config.hysteresis, _doubt(search, gang)
    num = bisect_left(
        peers.ranked, True, 0, num, key=lambda one: one[0] * score[0] * score[1] >= gang.urgency
    )
    return _stretched(search, gang.job.priority, peers, num)


def _stretched(
    search: VictimSearch, priority: int, peers: PeerCandidates, num: int
) -> IncrementalCandidateSet:
    below, known = _below(search, priority), search.incremental.get(priority)
    anew = known is None or known.num_left != len(search.decisions.leaving) or known.num > 2 * num
    if known is None or anew:
        parts = (below.prices.copy(), below.slots.copy(), below.costs.copy(), below.num_slots)
        known = search.incremental[priority] = IncrementalCandidateSet(
            *parts, below, peers, 0, len(search.decisions.leaving)
        )
    known.cover(search.cluster, num, search.decisions.leaving, search.price)
    return known


def _built(search: VictimSearch, gang: PendingGang) -> CandidateSet:
    """Build the candidate set of this gang alone."""
    candidates = _below(search, gang.job.priority).copy()
    peers = _peers(search, gang.job.priority)
    held_by, leaving, config = search.cluster.held, search.decisions.leaving, search.config
    ranked = peers.ranked[: peers.num_below(gang, search.config.hysteresis)]
    search.decisions.num_steps += len(ranked)
    # The test of `_outweighs` for each job, with the common terms computed once.
    factor, doubt, urgency = config.hysteresis, _doubt(search, gang), gang.urgency
    bound = config.lost_per_need * gang.need_slot_s(config)
    for score, num, lost in ranked:
        if num in leaving:
            continue
        held = held_by[num]
        if gang.guarded or gang.overdue:
            if not _outweighs(search, gang, held, score, lost):
                continue
        elif score * factor * doubt >= urgency:
            break
        elif lost > bound:
            continue
        candidates.add(search.cluster, num, search.price(held))
    return candidates


def ordered_candidate_set(search: VictimSearch, gang: PendingGang) -> CandidateSet:
    """Return a mutable `candidate_set` with its nodes in order of insertion."""
    if search.shares:
        return _across_projects(search, gang)
    steps = search.decisions.num_steps
    found = _built(search, gang)
    # The steps of a candidate set are counted where it is computed first.
    search.decisions.num_steps = steps
    return found


def could_suffice(search: VictimSearch, gang: PendingGang, num_free: int) -> bool:
    """Return whether preempting all candidates would free enough slots for this gang."""
    if search.shares:
        return True
    peers = _peers(search, gang.job.priority)
    slots = num_free + _below(search, gang.job.priority).num_slots
    if peers.large_jobs:
        return True
    return (
        slots + peers.slots[peers.num_below(gang, search.config.hysteresis)] >= gang.job.num_slots
    )


def large_peers(search: VictimSearch, priority: int) -> list[tuple[float, int]]:
    """Return the jobs of this priority that are too large to be preempted by peers, by score."""
    return _peers(search, priority).large_jobs


def _below(search: VictimSearch, priority: int) -> CandidateSet:
    """Return all candidates of lower priorities; updated as victims leave."""
    known = search.below.get(priority)
    if known is None:
        known = search.below[priority] = CandidateSet()
        cluster = search.cluster
        for other, ranked in sorted(cluster.preemptible(search.now).items()):
            if other >= priority:
                continue
            for _, num in ranked:
                held = cluster.held[num]
                search.decisions.num_steps += 1
                if num not in search.decisions.leaving and held.protected_until <= search.now:
                    known.add(cluster, num, search.price(held))
    return known


def _peers(search: VictimSearch, priority: int) -> PeerCandidates:
    known = search.peers.get(priority)
    if known is None:
        known = search.peers[priority] = PeerCandidates()
        now, held_by = search.now, search.cluster.held
        ranked, slots, total = known.ranked, known.slots, 0
        # No peer may be preempted sooner after its start than this.
        started_by, small = now - int(search.config.min_run_s * US), search.config.large_job_slots
        for score, num in search.cluster.preemptible(now).get(priority, ()):
            held = held_by[num]
            if held.protected_until > now or (held.started_at or 0) > started_by:
                continue
            if not _shares_time(search, held):
                continue
            if held.num_slots > small and is_large(search, held):
                known.large_jobs.append((score, num))
                continue
            lost = 0.0 if held.save_s is not None else held.lost_work(search.now)
            ranked.append((score, num, lost))
            total += held.num_slots
            slots.append(total)
            if lost > known.most_lost:
                known.most_lost = lost
    return known


def _across_projects(search: VictimSearch, gang: PendingGang) -> CandidateSet:
    preemptible, held_by = search.cluster.preemptible(search.now), search.cluster.held
    candidates = CandidateSet()
    for _, ranked in sorted(preemptible.items()):
        for score, num in ranked:
            held = held_by[num]
            search.decisions.num_steps += 1
            if num not in search.decisions.leaving and may_evict(search, gang, held, score):
                candidates.add(search.cluster, num, search.price(held))
    return candidates


def may_evict(search: VictimSearch, gang: PendingGang, held: RunningJob, score: float) -> bool:
    """Return whether this gang may preempt that running job."""
    job = gang.job
    if held.started_at is None or held.protected_until > search.now:
        return False
    if search.shares and held.project != job.project:
        shared = _shared(search, job.project, held.project)
        if not _reclaimable(search, held, shared):
            return False
        mine = search.shares.get(job.project)
        if gang.tier is EntitlementTier.GUARANTEED and (
            mine is None or mine.is_guaranteed(search.ledger.used, job.num_slots, shared)
        ):
            return True
    if held.priority != job.priority:
        return held.priority < job.priority
    if not _shares_time(search, held) or is_large(search, held):
        return False
    return _outweighs(search, gang, held, score, held.lost_work(search.now))


def _shared(search: VictimSearch, one: str, other: str) -> frozenset[str]:
    """Return the projects that both are part of."""
    mine, theirs = search.shares.get(one), search.shares.get(other)
    if mine is None or theirs is None:
        return frozenset()
    return frozenset(p.name for p in mine.lineage) & frozenset(p.name for p in theirs.lineage)


def _reclaimable(search: VictimSearch, held: RunningJob, shared: frozenset[str]) -> bool:
    """Return whether this job is part of its project's use beyond a guarantee.

    The guarantee is that of the widest project that the two do not have in common. The cheapest
    jobs that make up the excess are candidates; the others are not.
    """
    share_of = search.shares.get(held.project)
    names = [held.project] if share_of is None else [p.name for p in share_of.lineage]
    apart = [name for name in names if name not in shared]
    if not apart:
        # The gang is of one of its own parts, to which its own use is an excess.
        return True
    return held.job in _excess(search, apart[-1])


def _excess(search: VictimSearch, project: str) -> frozenset[int]:
    if search.excess_version != search.ledger.version:
        search.excess_version = search.ledger.version
        search.excess.clear()
    known = search.excess.get(project)
    if known is not None:
        return known
    share_of = search.shares.get(project)
    floor = 0 if share_of is None else share_of.project.guaranteed_slots
    gone = search.ledger.stopping.get(project, (0, 0))
    over = search.ledger.used.get(project, 0) - gone[0] - floor
    jobs = [h for h in search.cluster.held.values() if h.project == project and not h.stopping]
    for other, one in search.shares.items():
        if one.project.parent == project and other != project:
            jobs += [search.cluster.held[num] for num in sorted(_excess(search, other))]
    found = set()
    for held in sorted(jobs, key=lambda h: (search.price(h) / max(h.num_slots, 1), h.job)):
        if over <= 0:
            break
        if held.job not in search.decisions.leaving:
            found.add(held.job)
            over -= held.num_slots
    search.excess[project] = frozenset(found)
    return search.excess[project]


def _outweighs(
    search: VictimSearch, gang: PendingGang, held: RunningJob, score: float, lost: float
) -> bool:
    """Return whether the gang may preempt a job of its own priority."""
    config = search.config
    if gang.guarded:
        # Two starving jobs must not preempt each other in turn.
        return held.delayed_s <= config.guard_after_s / 2
    is_turn = gang.overdue and held.num_slots < gang.job.num_slots
    if not is_turn and score * config.hysteresis * _doubt(search, gang) >= gang.urgency:
        return False
    # Never lose more than a small part of the work that the gang itself needs.
    return lost <= config.lost_per_need * gang.need_slot_s(config)


def _doubt(search: VictimSearch, gang: PendingGang) -> float:
    """Return the factor by which a gang of uncertain urgency must outweigh its peers.

    Without it, jobs without any history preempt each other in turn until some history exists.
    """
    if gang.job.remaining_s is not None or gang.job.max_duration_s is not None:
        return 1.0
    return 1.0 + search.config.guess_margin / (1 + search.cluster.history.num_observed)


def _shares_time(search: VictimSearch, held: RunningJob) -> bool:
    """Return whether peers may preempt it: it can resume, and has run for long enough since its start."""
    at = shares_time_at(held, search.config)
    return at is not None and at <= search.now


def shares_time_at(held: RunningJob, config: PlannerConfig) -> int | None:
    """Return from when on jobs of its own priority may preempt a running job; None: never.

    A gang that has waited long runs for as long as it waited, and at most for `overdue_run_s`.
    """
    if not held.resumes or not held.preemptible or isinf(config.hysteresis):
        return None
    run_s = config.min_run_s
    if config.num_overdue and held.num_slots > 1 and held.delayed_s >= config.overdue_after_s:
        run_s = max(run_s, min(held.delayed_s, config.overdue_run_s))
    return max((held.started_at or 0) + int(run_s * US), held.protected_until)
