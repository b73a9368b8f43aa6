"""Relief: a hero makes room once those who wait have waited for as long as that puts it off.

Among peers a hero is nobody's victim, or it would stop for every short job in turn. A few of them can hold
a whole pool, though, while a thousand small jobs wait, or a larger hero. So who waits has to pay: when the
small jobs together, or the one large gang, have waited for as long as the heroes in question will be put off
(their pause, and the usual wait of their size until they start again), those leave. Waits weigh as sizes do
in the order of the queue. However long the heroes would have run, the waits come to at most about twice the
least possible that way.
"""

from __future__ import annotations

from phalanx.core.scheduling.draft import Claim, Draft
from phalanx.core.scheduling.estimates import size_class
from phalanx.core.scheduling.prices import price
from phalanx.core.scheduling.snapshot import US, Held, Terms


def hero_limit(draft: Draft, node: int) -> float:
    """The slots beyond which a job on nodes like this one counts as a hero."""
    group = draft.index.group_of[node]
    return max(draft.terms.hero_slots, draft.terms.hero_fraction * group.num_nodes * group.size)


def is_hero(draft: Draft, held: Held) -> bool:
    """Whether a running job is so large that its peers have to let it run."""
    nodes = draft.world.nodes_of[held.job]
    return bool(nodes) and held.num_slots > hero_limit(draft, nodes[0])


def candidates(draft: Draft, claim: Claim, heroes: list[tuple[float, int]]) -> dict[int, float]:
    """Heroes that this claim outweighs and whose pause has been paid for, with what stopping them costs.

    None while another leaves: what that frees is often enough for all who wait.
    """
    terms, held_by = draft.terms, draft.world.held
    found: dict[int, float] = {}
    for score, num in heroes:
        held = held_by[num]
        draft.steps += 1
        if score * terms.hysteresis >= claim.urgency:
            break
        if draft.standings and held.project != claim.job.project:
            continue
        if _put_off(draft, held) <= _waited(draft, claim):
            found[num] = price(draft, held)
    return {} if found and _is_one_leaving(draft) else found


def is_paid(draft: Draft, claim: Claim, victims: list[int]) -> bool:
    """Whether the waits come to what all these heroes together will be put off."""
    held = [draft.world.held[num] for num in victims]
    put_off = sum(_put_off(draft, one) for one in held if is_hero(draft, one))
    return put_off <= _waited(draft, claim)


def _weight(num_slots: int, terms: Terms) -> float:
    """What the wait of a job counts beside that of a job of one slot."""
    return float(num_slots ** (1.0 - terms.size_exponent))


def _put_off(draft: Draft, held: Held) -> float:
    """For how long stopping this hero puts it off, by its weight."""
    history = draft.world.history
    again_s = history.requeue_s.get(size_class(held.num_slots), 0.0)
    pause_s = held.restart_s + (held.save_s or 0.0) + draft.terms.min_run_s
    return _weight(held.num_slots, draft.terms) * (pause_s + again_s)


def _waited(draft: Draft, claim: Claim) -> float:
    """How long this large gang, or the queued small jobs of its priority together, have waited by weight."""
    mine, limit = claim.job, _small(draft)
    if mine.num_slots > limit:
        return _weight(mine.num_slots, draft.terms) * (draft.now - mine.since) / US
    key = ("" if not draft.standings else claim.job.project, claim.job.priority)
    known = draft.waited.get(key)
    if known is None:
        now, terms, world = draft.now, draft.terms, draft.world
        known = draft.waited[key] = sum(
            _weight(job.num_slots, terms) * (now - job.since) / US
            for job in world.waiting.values()
            if job.priority == key[1]
            and job.num_slots <= limit
            and job.num not in draft.started
            and (not key[0] or job.project == key[0])
        )
    return known


def _small(draft: Draft) -> float:
    pool = max(group.num_nodes * group.size for group in draft.index.groups)
    return max(draft.terms.hero_slots, draft.terms.hero_fraction * pool)


def _is_one_leaving(draft: Draft) -> bool:
    held = draft.world.held
    return any(
        (one.stopping or one.job in draft.leaving) and is_hero(draft, one) for one in held.values()
    )
