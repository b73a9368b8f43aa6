"""The cheapest set of victims in one domain that lets a whole gang start.

Nothing is preempted unless the gang then fits. Victims are priced by the slot-seconds that stopping
them loses: work since the last checkpoint (or the time of a requested save) and the restart.
Victims that turn out to be superfluous are dropped, the most expensive first. A gang of several
roles is placed part by part, each in the room that the earlier parts leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import chain

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, pick, wants_of
from phalanx.core.scheduling.index.topology import (
    NodeRequest,
    alike,
    areas,
    hosts,
    lands,
    levels,
    parts,
)
from phalanx.core.scheduling.model.planning_input import QueuedJob
from phalanx.core.scheduling.model.urgency import is_guarded
from phalanx.core.scheduling.search import large_jobs, moves
from phalanx.core.scheduling.search.candidate_set import (
    CandidateSet,
    IncrementalCandidateSet,
    PendingGang,
)
from phalanx.core.scheduling.search.candidates import (
    candidate_set,
    could_suffice,
    large_peers,
    ordered_candidate_set,
)
from phalanx.core.scheduling.search.victim_search import VictimSearch

_Offer = tuple[float, int, int]
"""The cost of freeing a share, its node, and its position among the shares of that node."""


@dataclass(frozen=True, slots=True)
class _Offers:
    """Nodes with free room for a share, and the costs of shares on other nodes.

    `first` breaks ties between domains: the domain with the earliest node wins.
    """

    free: list[int]
    paid: list[_Offer]
    first: list[int]

    def inside(self, nodes: Collection[int]) -> _Offers:
        """Return the offers on some of the nodes."""
        paid = [offer for offer in self.paid if offer[1] in nodes]
        return _Offers([node for node in self.free if node in nodes], paid, self.first)

    def on(self, leaves: Collection[int], leaf_of: list[int]) -> list[_Offer]:
        """Return the offers in some leaf domains, the cheapest first."""
        found = [(0.0, node, 0) for node in self.free if leaf_of[node] in leaves]
        return sorted(found + [offer for offer in self.paid if leaf_of[offer[1]] in leaves])


@dataclass(frozen=True, slots=True)
class VictimPlan:
    """Nodes for every share of a gang, the jobs that leave for it with their prices, and the sum."""

    cost: float
    nodes: list[int]
    victims: list[int]
    prices: list[float]


def find_victims(
    search: VictimSearch, eq_class: EquivalenceClass, since: int, num: int, overdue: bool = False
) -> VictimPlan | None:
    """Return the cheapest victims for the first job of a class, or None if there are none."""
    job = search.cluster.waiting[num]
    key = (job.project, job.priority, eq_class.request_num)
    if key in search.fruitless:
        return None
    gang = pending(search, eq_class, job, since, overdue)
    num_free = sum(group.num_free for group in eq_class.groups)
    best: VictimPlan | None = None
    if could_suffice(search, gang, num_free):
        plain = ordered_candidate_set(search, gang) if job.roles else candidate_set(search, gang)
        best = cheapest_plan(search, eq_class, job, plain)
        if best is None and moves.may_help(search, eq_class, job):
            best = _with_moves(search, eq_class, gang)
        if best is None:
            best = _with_large_jobs(search, eq_class, gang, plain)
    if best is None:
        search.fruitless.add(key)
    return best


def pending(
    search: VictimSearch, eq_class: EquivalenceClass, job: QueuedJob, since: int, overdue: bool
) -> PendingGang:
    """Return a job of a class as the search for victims sees it."""
    ledger = search.ledger
    urgency, guarded = ledger.urgency(eq_class, since), is_guarded(since, search.now, search.config)
    return PendingGang(job, ledger.tier(job), urgency, guarded, eq_class.base, overdue)


def _with_moves(
    search: VictimSearch, eq_class: EquivalenceClass, gang: PendingGang
) -> VictimPlan | None:
    """Return victims among which small jobs may move elsewhere, if that pays."""
    candidates = ordered_candidate_set(search, gang)
    candidates = candidates.with_more(search.cluster, moves.candidates(search, gang.job))
    best = cheapest_plan(search, eq_class, gang.job, candidates)
    if best is None or not moves.pays(search, gang.job, best.cost, best.nodes, best.victims):
        return None
    return best


def _with_large_jobs(
    search: VictimSearch, eq_class: EquivalenceClass, gang: PendingGang, candidates: CandidateSet
) -> VictimPlan | None:
    """Return victims with a large job among them, if the waits of small jobs have paid for its loss."""
    more = large_jobs.candidates(search, gang, large_peers(search, gang.job.priority))
    if not more:
        return None
    if isinstance(candidates, IncrementalCandidateSet):
        candidates = ordered_candidate_set(search, gang)
    return cheapest_plan(search, eq_class, gang.job, candidates.with_more(search.cluster, more))


def cheapest_plan(
    search: VictimSearch, eq_class: EquivalenceClass, job: QueuedJob, candidates: CandidateSet
) -> VictimPlan | None:
    """Return the cheapest victims among the candidates that let a gang start on nodes, or None."""
    best: VictimPlan | None = None
    if job.roles:
        for land in lands(eq_class.groups, eq_class.request):
            # Nodes of several kinds come last, and only where no kind alone will do.
            if best is not None and len(land) > 1:
                break
            found = _all_roles(search, land, eq_class.request, job, candidates)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        return best
    if job.domains > 1:
        return _apart(search, eq_class, job, candidates)
    for group in eq_class.groups:
        found = _in_group(search, group, job, candidates)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def _in_group(
    search: VictimSearch, group: NodeGroup, job: QueuedJob, candidates: CandidateSet
) -> VictimPlan | None:
    nodes = _cheapest(search, group, job, job.shape, candidates)
    return None if nodes is None else _plan_on(search, job, nodes, candidates)


def _plan_on(
    search: VictimSearch, job: QueuedJob, nodes: list[int], candidates: CandidateSet
) -> VictimPlan:
    """The victims on the nodes of a gang with one shape."""
    victims = without_needless(
        search, job, nodes, _victims(search, job, job.shape, nodes, candidates), candidates
    )
    prices = [candidates.prices[v] for v in victims]
    return VictimPlan(sum(prices), nodes, victims, prices)


def _apart(
    search: VictimSearch, eq_class: EquivalenceClass, job: QueuedJob, candidates: CandidateSet
) -> VictimPlan | None:
    """The cheapest domains of the required level for equal parts of the gang, one for each."""
    each, leaf_of = job.shape.nodes // job.domains, search.index.leaf_of
    best: VictimPlan | None = None
    for kinds in alike(eq_class.groups):
        inside: dict[str, list[_Offer]] = {}
        for group in kinds:
            depth = group.levels.index(str(job.required))
            offers = _offers(search, group, job, job.shape, candidates)
            for offer in [(0.0, node, 0) for node in offers.free] + offers.paid:
                inside.setdefault(group.leaves[leaf_of[offer[1]]][depth], []).append(offer)
        ranked = sorted(
            (sum(cost for cost, _, _ in sorted(found)[:each]), name)
            for name, found in inside.items()
            if len(found) >= each
        )[: job.domains]
        if len(ranked) == job.domains:
            nodes = [node for _, name in ranked for _, node, _ in sorted(inside[name])[:each]]
            found = _plan_on(search, job, nodes, candidates)
            if best is None or found.cost < best.cost:
                best = found
    return best


# -- several roles -------------------------------------------------------------------------------


def _all_roles(
    search: VictimSearch,
    land: list[NodeGroup],
    request: NodeRequest,
    job: QueuedJob,
    candidates: CandidateSet,
) -> VictimPlan | None:
    """The cheapest domain of the narrowest level in which all parts of the gang find room."""
    for level in levels(land[0], job.required):
        best: VictimPlan | None = None
        for inside in areas(search.index, land, level):
            found = _roles_inside(search, (land, request), job, candidates.copy(), inside)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        if best is not None:
            return best
    return None


def _part(job: QueuedJob, shape: GangShape) -> QueuedJob:
    """The job as one of its parts asks for nodes: with that role's own CPUs and memory."""
    cpus, memory = wants_of(shape, job.cpus_per_node, job.memory_per_node_bytes)
    return replace(job, cpus_per_node=cpus, memory_per_node_bytes=memory)


def _cheapest_kind(
    search: VictimSearch,
    where: tuple[list[NodeGroup], NodeRequest],
    part: tuple[QueuedJob, GangShape],
    candidates: CandidateSet,
    inside: frozenset[int],
) -> tuple[list[int], list[int]] | None:
    """Return nodes of one kind for all shares of a part, and the victims on them, or None."""
    (land, request), (job, shape) = where, part
    best: tuple[float, list[int], list[int]] | None = None
    for group in sorted(land, key=lambda group: group.size):
        nodes = (
            _cheapest(search, group, job, shape, candidates, inside)
            if hosts(group, request, shape)
            else None
        )
        if nodes is not None:
            victims = _victims(search, job, shape, nodes, candidates)
            cost = sum(candidates.prices[victim] for victim in victims)
            if best is None or cost < best[0]:
                best = (cost, nodes, victims)
    return None if best is None else best[1:]


def _roles_inside(
    search: VictimSearch,
    where: tuple[list[NodeGroup], NodeRequest],
    job: QueuedJob,
    candidates: CandidateSet,
    inside: frozenset[int],
) -> VictimPlan | None:
    index, cluster, mark = search.index, search.cluster, search.index.mark()
    prices = dict(candidates.prices)
    placed: dict[int, list[int]] = {}
    victims: list[int] = []
    try:
        for at, shape in parts(job.shape, job.roles):
            part = _part(job, shape)
            found = _cheapest_kind(search, where, (part, shape), candidates, inside)
            if found is None:
                return None
            nodes, leaving = found
            for victim in leaving:
                held = cluster.held[victim]
                for allocation in index.allocations(
                    held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
                ):
                    index.give(allocation)
                candidates.remove(cluster, victim)
                victims.append(victim)
            for node in nodes:
                mask = pick(index.free[node], shape.slots_per_node)
                index.take(Allocation(node, mask, part.cpus_per_node, part.memory_per_node_bytes))
            placed[at] = nodes
    finally:
        index.rollback(mark)
    every = [node for at in sorted(placed) for node in placed[at]]
    needed = without_needless(search, job, every, victims, CandidateSet(prices))
    costs = [prices[v] for v in needed]
    return VictimPlan(sum(costs), every, needed, costs)


# -- one shape -----------------------------------------------------------------------------------


def _cheapest(
    search: VictimSearch,
    group: NodeGroup,
    job: QueuedJob,
    shape: GangShape,
    candidates: CandidateSet,
    inside: Collection[int] | None = None,
) -> list[int] | None:
    """Return nodes for all shares in the cheapest domain of the narrowest level possible."""
    need, leaf_of = shape.nodes, search.index.leaf_of
    offers = _offers(search, group, job, shape, candidates)
    if inside is not None:
        offers = offers.inside(inside)
    if len(offers.free) + len(offers.paid) < need:
        return None
    if job.required == "node":
        return _one_host(search, offers, need, candidates)
    if inside is not None:
        every = [(0.0, node, 0) for node in offers.free] + offers.paid
        return [node for _, node, _ in sorted(every)[:need]]
    num_free: dict[int, int] = {}
    for node in offers.free:
        leaf = leaf_of[node]
        num_free[leaf] = num_free.get(leaf, 0) + 1
    costs: dict[int, list[float]] = {leaf: [] for leaf in num_free}
    for cost, node, _ in offers.paid:
        leaf = leaf_of[node]
        here = costs.get(leaf)
        if here is None:
            costs[leaf] = [cost]
        else:
            here.append(cost)
    for level in levels(group, job.required):
        equal = _cheapest_domains(_domains(group, costs, level), num_free, costs, need)
        if equal:
            chosen = equal[0] if len(equal) == 1 else _earliest(search, equal, offers, candidates)
            return [node for _, node, _ in offers.on(set(chosen), leaf_of)[:need]]
    return None


def _domains(group: NodeGroup, leaves: Collection[int], level: str | None) -> list[list[int]]:
    """Leaf domains by the domain of this level that they lie in."""
    depth = -1 if level is None else group.levels.index(level)
    if depth == len(group.levels) - 1 and depth >= 0:
        return [[leaf] for leaf in leaves]
    found: dict[str, list[int]] = {}
    for leaf in leaves:
        found.setdefault("" if depth < 0 else group.leaves[leaf][depth], []).append(leaf)
    return list(found.values())


def _cheapest_domains(
    domains: list[list[int]], num_free: dict[int, int], costs: dict[int, list[float]], need: int
) -> list[list[int]]:
    """Return the domains that can hold so many shares at the least cost."""
    best, equal = 0.0, list[list[int]]()
    for leaves in domains:
        lack, dear = need, costs[leaves[0]] if len(leaves) == 1 else list[float]()
        for leaf in leaves:
            lack -= num_free.get(leaf, 0)
            if len(leaves) > 1:
                dear += costs[leaf]
        if lack > len(dear):
            continue
        cost = 0.0 if lack <= 0 else min(dear) if lack == 1 else sum(sorted(dear)[:lack])
        if not equal or cost < best:
            best, equal = cost, [leaves]
        elif cost == best:
            equal.append(leaves)
    return equal


def _earliest(
    search: VictimSearch, equal: list[list[int]], offers: _Offers, candidates: CandidateSet
) -> list[int]:
    """Return the first domain among those of equal cost."""
    leaf_of = search.index.leaf_of
    domain_of = {leaf: leaves for leaves in equal for leaf in leaves}
    for node in offers.first:
        found = domain_of.get(leaf_of[node])
        if found is not None:
            return found
    there = {node for _, node, _ in offers.paid}
    for node in candidates.in_turn(search.cluster):
        found = domain_of.get(leaf_of[node])
        if found is not None and node in there:
            return found
    return equal[0]


def _one_host(
    search: VictimSearch, offers: _Offers, need: int, candidates: CandidateSet
) -> list[int] | None:
    """Return the cheapest node that can hold all shares, once for each share."""
    by_node: dict[int, list[float]] = {}
    for node in offers.free:
        by_node.setdefault(node, []).append(0.0)
    for cost, node, _ in offers.paid:
        by_node.setdefault(node, []).append(cost)
    sums = {
        node: sum(sorted(costs)[:need]) for node, costs in by_node.items() if len(costs) >= need
    }
    if not sums:
        return None
    best = min(sums.values())
    equal = {node for node, cost in sums.items() if cost == best}
    for node in chain(offers.first, candidates.in_turn(search.cluster)):
        if node in equal:
            return [node] * need
    return [min(equal)] * need


def _offers(
    search: VictimSearch,
    group: NodeGroup,
    job: QueuedJob,
    shape: GangShape,
    candidates: CandidateSet,
) -> _Offers:
    """Return the costs of a share on each node that has or could have room."""
    index, need = search.index, shape.slots_per_node
    if group.splittable:
        paid = _split_offers(search, group, job, shape, candidates)
        return _Offers([], paid, [node for _, node, _ in paid])
    free, group_of, size = index.num_free, index.group_of, group.size
    plain = not (job.cpus_per_node or job.memory_per_node_bytes)
    ready: list[int] = []
    for bucket in group.by_free[need:]:
        ready += bucket if plain else [n for n in bucket if _has_rest(search, job, n, 0, 0)]
    search.decisions.num_steps += len(ready) + len(candidates.slots)
    costs, others = candidates.costs, list[_Offer]()
    for node, slots in candidates.slots.items():
        had = free[node]
        if had + slots < need or not slots or (plain and had >= need):
            continue
        if group_of[node] is not group or index.closed[node] or node in search.closed:
            continue
        if plain and had + slots == need == size:
            others.append((costs[node], node, 0))
            continue
        victims = _leave_for(search, job, shape, node, 1, candidates)
        if victims:
            others.append((sum([candidates.prices[v] for v in victims]), node, 0))
    return _Offers(ready, others, ready)


def _has_rest(
    search: VictimSearch, job: QueuedJob, node: int, cpus: int, memory_bytes: int
) -> bool:
    """Return whether a node's CPUs and memory suffice, with so much more of each."""
    index = search.index
    if index.nodes[node].splittable:
        return job.cpus_per_node <= index.nodes[node].num_cpus
    return (
        index.cpus[node] + cpus >= job.cpus_per_node
        and index.memory[node] + memory_bytes >= job.memory_per_node_bytes
    )


def _leave_for(
    search: VictimSearch,
    job: QueuedJob,
    shape: GangShape,
    node: int,
    shares: int,
    candidates: CandidateSet,
) -> list[int] | None:
    """Return the victims on this node that make room for so many shares; None if impossible."""
    index, cluster = search.index, search.cluster
    on_node, prices = cluster.on_node[node], candidates.prices
    slots, need = index.num_free[node], shape.slots_per_node * shares
    if not (job.cpus_per_node or job.memory_per_node_bytes):
        return _leave_for_slots(on_node, prices, need - slots)
    cpus = memory = 0
    if slots >= need and _has_rest(search, job, node, cpus, memory):
        return []
    holders = sorted([(prices[j] / slots, j) for j, slots in on_node.items() if j in prices])
    victims: list[int] = []
    for _, victim in holders:
        held = cluster.held[victim]
        victims.append(victim)
        slots += on_node[victim]
        cpus += held.cpus_per_node
        memory += held.memory_per_node_bytes
        if slots >= need and _has_rest(search, job, node, cpus, memory):
            return victims
    return None


def _leave_for_slots(
    on_node: dict[int, int], prices: dict[int, float], lack: int
) -> list[int] | None:
    """Return the same where only slots count: the cheapest per slot are taken first."""
    if lack <= 0:
        return []
    if len(on_node) == 1:
        return [num for num, held in on_node.items() if num in prices and held >= lack] or None
    ranked: list[tuple[float, int]] = []
    for num, held in on_node.items():
        price = prices.get(num)
        if price is not None:
            ranked.append((price / held, num))
    if len(ranked) > 1:
        ranked.sort()
    victims: list[int] = []
    for _, victim in ranked:
        victims.append(victim)
        lack -= on_node[victim]
        if lack <= 0:
            return victims
    return None


def _split_offers(
    search: VictimSearch,
    group: NodeGroup,
    job: QueuedJob,
    shape: GangShape,
    candidates: CandidateSet,
) -> list[_Offer]:
    """Return the cost of each further share on a node; the costs never decrease."""
    found = []
    for bucket in group.by_free:
        for node in bucket:
            if node in search.closed:
                continue
            most = group.size // max(shape.slots_per_node, 1)
            most = most if search.index.nodes[node].splittable else 1
            before = dearest = 0.0
            for turn in range(min(most, shape.nodes)):
                search.decisions.num_steps += 1
                victims = _leave_for(search, job, shape, node, turn + 1, candidates)
                if victims is None:
                    break
                cost = sum(candidates.prices[v] for v in victims)
                dearest = max(dearest, cost - before)
                before = cost
                found.append((dearest, node, turn))
    return found


def _victims(
    search: VictimSearch,
    job: QueuedJob,
    shape: GangShape,
    nodes: list[int],
    candidates: CandidateSet,
) -> list[int]:
    """Return all victims that make room for the chosen shares on these nodes."""
    found: dict[int, None] = {}
    for node in dict.fromkeys(nodes):
        leaving = _leave_for(search, job, shape, node, nodes.count(node), candidates)
        found.update(dict.fromkeys(leaving or ()))
    return list(found)


def without_needless(
    search: VictimSearch,
    job: QueuedJob,
    nodes: list[int],
    victims: list[int],
    candidates: CandidateSet,
    suffices: Callable[[list[int]], bool] | None = None,
) -> list[int]:
    """Return the victims without superfluous ones, dropping the most expensive first.

    `suffices` tells whether the victims that remain suffice for something else than room on nodes.
    """
    index, cluster, shapes = search.index, search.cluster, (job.shape, *job.roles)
    wants = (wants_of(one, job.cpus_per_node, job.memory_per_node_bytes) for one in shapes)
    if any(map(any, wants)) and not all(
        set(cluster.nodes_of[v]).isdisjoint(nodes) for v in victims
    ):
        return victims
    room = {node: index.num_free[node] for node in nodes}
    for node, width in zip(nodes, job.widths(len(nodes)), strict=True):
        room[node] -= width
    for victim in victims:
        for node in cluster.nodes_of[victim]:
            if node in room:
                room[node] += cluster.on_node[node][victim]
    kept = set(victims)
    for victim in sorted(victims, key=lambda v: (-candidates.prices[v], v)):
        gone = {
            node: cluster.on_node[node][victim] for node in cluster.nodes_of[victim] if node in room
        }
        if any([room[node] < slots for node, slots in gone.items()]):
            continue
        if suffices is None or suffices([v for v in victims if v in kept and v != victim]):
            kept.remove(victim)
            for node, slots in gone.items():
                room[node] -= slots
    return [victim for victim in victims if victim in kept]
