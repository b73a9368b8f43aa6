"""Relief: a hero makes room for small jobs once their waiting has cost as much as its pause would.

Among peers a hero is nobody's victim, or it would stop for every short job in turn. A few of them can hold
a whole pool, though, while a thousand small jobs wait. So the small ones pay: when the slot-seconds that
they have waited together come to what stopping a hero costs, one hero leaves for them. However long the
heroes would have run, no more than about twice the least possible cost is paid that way.
"""

from __future__ import annotations

from phalanx.core.scheduling.draft import Claim, Draft
from phalanx.core.scheduling.prices import price
from phalanx.core.scheduling.snapshot import US, Held


def hero_limit(draft: Draft, node: int) -> float:
    """The slots beyond which a job on nodes like this one counts as a hero."""
    group = draft.index.group_of[node]
    return max(draft.terms.hero_slots, draft.terms.hero_fraction * group.num_nodes * group.size)


def is_hero(draft: Draft, held: Held) -> bool:
    """Whether a running job is so large that its peers have to let it run."""
    nodes = draft.world.nodes_of[held.job]
    return bool(nodes) and held.num_slots > hero_limit(draft, nodes[0])


def candidates(draft: Draft, claim: Claim, heroes: list[tuple[float, int]]) -> dict[int, float]:
    """Heroes whose pause the waiting of small jobs has paid for, with what that costs.

    One leaves at a time: what it frees is often enough for all who wait.
    """
    job, terms, held_by = claim.job, draft.terms, draft.world.held
    found: dict[int, float] = {}
    for score, num in heroes:
        held = held_by[num]
        draft.steps += 1
        if draft.standings and held.project != job.project:
            continue
        if job.num_slots > hero_limit(draft, draft.world.nodes_of[num][0]):
            return {}
        if score * terms.hysteresis >= claim.urgency:
            break
        cost = price(draft, held) + held.num_slots * terms.min_run_s
        if cost <= _waited(draft, claim):
            found[num] = cost
    return {} if found and _is_one_leaving(draft) else found


def _waited(draft: Draft, claim: Claim) -> float:
    """Slot-seconds that the queued small jobs of this priority have waited since they queued last."""
    key = ("" if not draft.standings else claim.job.project, claim.job.priority)
    known = draft.waited.get(key)
    if known is None:
        now, terms, world = draft.now, draft.terms, draft.world
        pool = max(group.num_nodes * group.size for group in draft.index.groups)
        limit = max(terms.hero_slots, terms.hero_fraction * pool)
        known = draft.waited[key] = sum(
            job.num_slots * (now - job.since) / US
            for job in world.waiting.values()
            if job.priority == key[1]
            and job.num_slots <= limit
            and job.num not in draft.started
            and (not key[0] or job.project == key[0])
        )
    return known


def _is_one_leaving(draft: Draft) -> bool:
    held = draft.world.held
    return any(
        (one.stopping or one.job in draft.leaving) and is_hero(draft, one) for one in held.values()
    )
