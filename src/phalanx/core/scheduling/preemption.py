"""Preemption: the cheapest set of victims in one domain that lets the whole gang start.

Nothing is evicted unless the gang then fits. Victims are priced by the slot-seconds that stopping them
throws away: work since the last checkpoint (or the time to save on request) and the restart.
Superfluous victims are dropped again, dearest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import moves
from phalanx.core.scheduling.draft import Draft
from phalanx.core.scheduling.entitlement import Tier
from phalanx.core.scheduling.order import is_guarded
from phalanx.core.scheduling.outcome import Preemption
from phalanx.core.scheduling.prices import lost_work, price
from phalanx.core.scheduling.slots import NodeGroup
from phalanx.core.scheduling.snapshot import US, Held, Hole, Waiting
from phalanx.core.scheduling.topology import spread
from phalanx.core.scheduling.world import Line


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants room, and how strongly."""

    job: Waiting
    tier: Tier
    urgency: float
    guarded: bool


def candidates(draft: Draft, claim: Claim) -> dict[int, float]:
    """Everybody this claim outweighs, with the price of each."""
    prey, held_by = draft.world.prey(draft.now), draft.world.held
    threshold = claim.urgency / draft.terms.hysteresis
    found: dict[int, float] = {}
    for priority, ranked in prey.items():
        peers = priority == claim.job.priority
        if priority > claim.job.priority and not draft.standings:
            continue
        for score, num in ranked:
            if peers and score >= threshold and not claim.guarded and not draft.standings:
                break
            held = held_by[num]
            draft.steps += 1
            if num not in draft.leaving and may_evict(draft, claim, held, score):
                found[num] = price(draft, held)
    return found


def may_evict(draft: Draft, claim: Claim, held: Held, score: float) -> bool:
    """Whether this claim outweighs that job's hold."""
    now, terms, job = draft.now, draft.terms, claim.job
    if held.started_at is None or held.protected_until > now:
        return False
    if draft.standings and held.project != job.project:
        if not _reclaimable(draft, held):
            return False
        if claim.tier is Tier.GUARANTEED:
            return True
    if held.priority != job.priority:
        return held.priority < job.priority
    if (now - held.started_at) / US < terms.min_run_s:
        return False
    if claim.guarded:
        # Two that starve must not take turns.
        if held.delayed_s > terms.guard_after_s / 2:
            return False
    else:
        if score * terms.hysteresis >= claim.urgency:
            return False
        # Never throw away much of what the claim itself is expected to need.
        need = job.num_slots ** (1.0 - terms.size_exponent) / claim.urgency
        if lost_work(draft, held) > terms.lost_per_need * need:
            return False
    return not _is_hero(draft, held)


def _reclaimable(draft: Draft, held: Held) -> bool:
    """Whether this job is part of what its project holds beyond its guarantee.

    The cheapest jobs that make up the excess are; the rest of the project is out of reach.
    """
    known = draft.excess.get(held.project)
    if known is None:
        known = draft.excess[held.project] = _excess(draft, held.project)
    return held.job in known


def _excess(draft: Draft, project: str) -> frozenset[int]:
    standing = draft.standings.get(project)
    floor = 0 if standing is None else standing.project.guaranteed_slots
    over = draft.used.get(project, 0) - floor
    jobs = [h for h in draft.world.held.values() if h.project == project and not h.stopping]
    found = set()
    for held in sorted(jobs, key=lambda h: (price(draft, h) / max(h.num_slots, 1), h.job)):
        if over <= 0:
            break
        if held.job not in draft.leaving:
            found.add(held.job)
            over -= held.num_slots
    return frozenset(found)


def _is_hero(draft: Draft, held: Held) -> bool:
    index = draft.index
    node = index.num_of.get(held.placement.shares[0].node) if held.placement.shares else None
    if node is None:
        return False
    group = index.group_of[node]
    limit = max(draft.terms.hero_slots, draft.terms.hero_fraction * group.num_nodes * group.size)
    return held.num_slots > limit


@dataclass(slots=True)
class _Offer:
    """What freeing a share on one node costs, and who leaves for it."""

    cost: float
    node: int
    victims: list[int]


def make_room(draft: Draft, line: Line, since: int, num: int) -> bool:
    """Plan victims and a hole for the first job of a line. True if the plan commits."""
    job = draft.world.waiting[num]
    key = (job.project, job.priority, line.ask)
    if job.roles or key in draft.no_victims:
        return False
    claim = Claim(
        job, draft.tier(job), draft.urgency(line, since), is_guarded(since, draft.now, draft.terms)
    )
    prices = candidates(draft, claim)
    best = _best(draft, line, job, prices)
    if best is None and moves.may_help(draft, line, job):
        prices = {**moves.candidates(draft, job), **prices}
        best = _best(draft, line, job, prices)
        if best is not None and not moves.pays(draft, line, job, best):
            best = None
    if best is None:
        draft.no_victims.add(key)
        return False
    _commit(draft, job, best[1], best[2], prices)
    return True


def _best(
    draft: Draft, line: Line, job: Waiting, prices: dict[int, float]
) -> tuple[float, list[int], list[int]] | None:
    best: tuple[float, list[int], list[int]] | None = None
    for group in line.groups:
        chosen = _cheapest(draft, group, job, prices)
        if chosen is not None:
            victims = _needed(draft, group, job, chosen, prices)
            cost = sum(prices[v] for v in victims)
            if best is None or cost < best[0]:
                best = (cost, [offer.node for offer in chosen], victims)
    return best


def _cheapest(
    draft: Draft, group: NodeGroup, job: Waiting, prices: dict[int, float]
) -> list[_Offer] | None:
    offers: dict[int, list[_Offer]] = {}
    for node, holders in _nodes_of(draft, group, job.shape.slots_per_node, prices):
        offer = _offer(draft, node, holders, job, prices)
        if offer is not None:
            offers.setdefault(draft.index.leaf_of[node], []).append(offer)
    need = job.shape.nodes
    for found in offers.values():
        found.sort(key=lambda o: (o.cost, o.node))
    leaves = [
        (sum(o.cost for o in found[:need]), leaf)
        for leaf, found in offers.items()
        if len(found) >= need
    ]
    if leaves:
        return offers[min(leaves)[1]][:need]
    by_node = {o.node: o for found in offers.values() for o in found}
    if len(by_node) < need:
        return None
    rooms = {leaf: [o.node for o in found] for leaf, found in offers.items()}
    nodes = spread(group, rooms, need, job.required)
    return None if nodes is None else [by_node[node] for node in nodes]


def _nodes_of(
    draft: Draft, group: NodeGroup, need: int, prices: dict[int, float]
) -> list[tuple[int, list[int]]]:
    """Nodes with room already, and those where a possible victim runs; with the victims of each."""
    index, held = draft.index, draft.world.held
    found: dict[int, list[int]] = {n: [] for bucket in group.by_free[need:] for n in bucket}
    for job in prices:
        for name in dict.fromkeys(share.node for share in held[job].placement.shares):
            node = index.num_of.get(name)
            if node is not None and index.group_of[node] is group and not index.nodes[node].closed:
                found.setdefault(node, []).append(job)
    draft.steps += len(found)
    return list(found.items())


def _offer(
    draft: Draft, node: int, holders: list[int], job: Waiting, prices: dict[int, float]
) -> _Offer | None:
    index = draft.index
    slots = index.free[node].bit_count()
    cpus, memory = index.cpus[node], index.memory[node]
    need = job.shape.slots_per_node

    def enough() -> bool:
        return slots >= need and cpus >= job.cpus_per_node and memory >= job.memory_per_node_bytes

    if enough():
        return _Offer(0.0, node, [])
    on_node = draft.world.on_node[node]
    ranked = sorted(holders, key=lambda j: (prices[j] / on_node[j].bit_count(), j))
    victims: list[int] = []
    cost = 0.0
    for victim in ranked:
        held = draft.world.held[victim]
        victims.append(victim)
        cost += prices[victim]
        slots += on_node[victim].bit_count()
        cpus += held.cpus_per_node
        memory += held.memory_per_node_bytes
        if enough():
            return _Offer(cost, node, victims)
    return None


def _needed(
    draft: Draft, group: NodeGroup, job: Waiting, chosen: list[_Offer], prices: dict[int, float]
) -> list[int]:
    """The victims without the superfluous ones: the dearest are spared first."""
    index, world = draft.index, draft.world
    victims = list(dict.fromkeys(v for offer in chosen for v in offer.victims))
    nodes = [offer.node for offer in chosen]
    room = {
        node: index.free[node].bit_count()
        + sum(world.on_node[node][v].bit_count() for v in victims if v in world.on_node[node])
        for node in nodes
    }
    if job.cpus_per_node or job.memory_per_node_bytes:
        return victims
    kept = set(victims)
    for victim in sorted(victims, key=lambda v: (-prices[v], v)):
        names = {share.node for share in world.held[victim].placement.shares}
        here = [n for n in (index.num_of.get(name, -1) for name in names) if n in room]
        gone = {node: world.on_node[node][victim].bit_count() for node in here}
        if all(room[node] - gone[node] >= job.shape.slots_per_node for node in here):
            kept.remove(victim)
            for node in here:
                room[node] -= gone[node]
    return [victim for victim in victims if victim in kept]


def _commit(
    draft: Draft, job: Waiting, nodes: list[int], victims: list[int], prices: dict[int, float]
) -> None:
    held = draft.world.held
    save_s = max((held[v].save_s or 0.0 for v in victims), default=0.0)
    hole = Hole(
        job.num,
        tuple(draft.index.nodes[node].id for node in nodes),
        draft.now + int(save_s * US),
        draft.now + int((save_s + draft.terms.hole_ttl_s) * US),
        tuple(victims),
    )
    draft.holes.append(hole)
    draft.block(hole, job.shape.slots_per_node)
    for victim in victims:
        draft.leaving.add(victim)
        project = held[victim].project
        draft.used[project] = draft.used.get(project, 0) - held[victim].num_slots
        text = (
            f"makes room for j-{job.num} ({job.num_slots} slots, priority {job.priority}); "
            f"costs about {prices[victim] / 3600:.2f} slot-hours"
        )
        draft.preemptions.append(
            Preemption(victim, job.num, prices[victim], Reason(ReasonCode.PREEMPTED, text))
        )
    draft.used[job.project] = draft.used.get(job.project, 0) + job.num_slots
    draft.excess.clear()
