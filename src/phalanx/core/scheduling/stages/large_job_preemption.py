"""Relief: a hero makes room for small jobs once those have waited for as long as that puts it off.

Among peers a hero is nobody's victim, or it would stop for every short job in turn. A few of them can hold
a whole pool, though, while a thousand small jobs wait. So who waits has to pay: when the small jobs of a
priority have together waited as many slot-seconds as a hero will lose by stopping (its pause, and the usual
wait of its size until it starts again), one hero leaves. However long the heroes would have run, the waits
come to at most about twice the least possible that way.
"""

from __future__ import annotations

from phalanx.core.scheduling.model.durations import size_class
from phalanx.core.scheduling.model.eviction_cost import price
from phalanx.core.scheduling.model.snapshot import US, Held
from phalanx.core.scheduling.stages.scheduling_pass import Claim, Draft


def hero_limit(draft: Draft, node: int) -> float:
    """The slots beyond which a job on nodes like this one counts as a hero."""
    group = draft.index.group_of[node]
    return max(draft.terms.hero_slots, draft.terms.hero_fraction * group.num_nodes * group.size)


def is_hero(draft: Draft, held: Held) -> bool:
    """Whether a running job is so large that its peers have to let it run."""
    if held.num_slots <= draft.terms.hero_slots:
        return False
    nodes = draft.world.nodes_of[held.job]
    return bool(nodes) and held.num_slots > hero_limit(draft, nodes[0])


def candidates(draft: Draft, claim: Claim, heroes: list[tuple[float, int]]) -> dict[int, float]:
    """Heroes that this claim outweighs and whose loss has been paid for, with what stopping them costs.

    None while another leaves: what that frees is often enough for all who wait.
    """
    terms, held_by = draft.terms, draft.world.held
    found: dict[int, float] = {}
    if not heroes or claim.job.num_slots > draft.largest_small():
        return found
    for score, num in heroes:
        held = held_by[num]
        draft.steps += 1
        if score * terms.hysteresis >= claim.urgency:
            break
        if draft.standings and held.project != claim.job.project:
            continue
        if _put_off_slot_s(draft, held) <= _waited_slot_s(draft, claim):
            found[num] = price(draft, held)
    return {} if found and _is_one_leaving(draft) else found


def _put_off_slot_s(draft: Draft, held: Held) -> float:
    """Slot-seconds by which stopping this hero puts it off."""
    again_s = draft.world.history.requeue_s.get(size_class(held.num_slots), 0.0)
    pause_s = held.restart_s + (held.save_s or 0.0) + draft.terms.min_run_s
    return held.num_slots * (pause_s + again_s)


def _waited_slot_s(draft: Draft, claim: Claim) -> float:
    """Slot-seconds that the queued small jobs of this priority have waited since they queued last."""
    key = ("" if not draft.standings else claim.job.project, claim.job.priority)
    known = draft.waited.get(key)
    if known is None:
        project, priority = key
        limit, waiting, waited = draft.largest_small(), draft.world.waiting, 0
        for (whose, urgent, slots), queued in draft.world.queued.items():
            if urgent == priority and slots <= limit and (not project or whose == project):
                waited += slots * (queued.num * draft.now - queued.since)
        for num in draft.started:
            job = waiting[num]
            mine = job.priority == priority and (not project or job.project == project)
            if mine and job.num_slots <= limit:
                waited -= job.num_slots * (draft.now - job.since)
        known = draft.waited[key] = waited / US
    return known


def _is_one_leaving(draft: Draft) -> bool:
    held = draft.world.held
    if any(is_hero(draft, held[num]) for num in draft.world.stopping):
        return True
    return any(is_hero(draft, held[num]) for num in draft.leaving)
