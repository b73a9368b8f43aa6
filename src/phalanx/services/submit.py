"""Submit: everything that can be wrong with a job is said before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.jobs.events import Submitted
from phalanx.core.placement import Node
from phalanx.core.scheduling.planner import fits_ever
from phalanx.errors import NotFound, Problem, SpecInvalid, UserError
from phalanx.schemas.api import SubmitRequest
from phalanx.schemas.spec import JobSpec, check_supported, resolved, validate_spec
from phalanx.services import code
from phalanx.services.commit import commit_new
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts


@dataclass(frozen=True, slots=True)
class Accepted:
    """A spec that can run here, with every default written out."""

    spec: JobSpec
    resolved: dict[str, Any]


def check(platform: Platform, request: SubmitRequest) -> Accepted:
    """What a dry run does. Raises SpecInvalid with every problem found."""
    spec = validate_spec(request.spec)
    problems = check_supported(spec) or _misfits(spec, platform.executor.inventory())
    if problems:
        raise SpecInvalid(problems)
    return Accepted(spec, resolved(spec))


def submit(platform: Platform, request: SubmitRequest, now: int) -> tuple[int, Accepted]:
    """Store a new job; returns its number. Raises SpecInvalid, NotFound for code not yet uploaded."""
    accepted = check(platform, request)
    spec = accepted.spec
    if request.kind == "run" and request.caller_cwd is None:
        raise UserError("a `run` job needs `caller_cwd`", "send it, or use kind `submit`")
    if request.code is not None and not code.has(platform.home, request.code):
        raise NotFound(
            f"code {request.code[:12]}… has not been uploaded",
            f"PUT it to /api/v1/code/{request.code} first",
        )
    runs = request.kind == "run"
    facts = JobFacts(
        project=spec.project,
        name=spec.name,
        owner=request.owner,
        labels=dict(spec.labels),
        framework=spec.framework,
        kind=request.kind,
        priority=spec.priority,
        pools=tuple(spec.pool),
        cpus_per_node=spec.cpus_per_node,
        spec=accepted.resolved,
        code_digest=request.code,
        caller_cwd=request.caller_cwd if runs else None,
        caller_env=request.caller_env if runs else None,
    )

    def work(tx: Tx) -> int:
        num = jobs.new_num(tx)
        actor = f"user:{request.owner}" if request.owner else "user"
        commit_new(tx, Submitted(num, spec.to_terms()), facts, now, actor)
        return num

    return platform.store.transact(work), accepted


def _misfits(spec: JobSpec, nodes: Sequence[Node]) -> list[Problem]:
    """Why the gang could never be placed, even if nothing else ran."""
    pools = sorted({node.pool for node in nodes})
    unknown = [pool for pool in spec.pool if pool not in pools]
    if unknown:
        known = ", ".join(pools) or "none"
        said = f"there is no such pool; there is {known}"
        return [Problem("pool", said, ", ".join(unknown))]
    usable = tuple(node for node in nodes if not spec.pool or node.pool in spec.pool)
    if fits_ever(spec.shape, spec.cpus_per_node, usable):
        return []
    return [_largest(spec, usable)]


def _largest(spec: JobSpec, nodes: Sequence[Node]) -> Problem:
    shape, cpus = spec.shape, spec.cpus_per_node
    where = f"of pool {', '.join(spec.pool)}" if spec.pool else "of any pool"
    most_cpus = max((node.num_cpus for node in nodes), default=0)
    if cpus > most_cpus:
        return Problem("resources.cpus", f"the largest node {where} has {most_cpus}", str(cpus))
    wide = [node for node in nodes if node.num_cpus >= cpus]
    most_slots = max((node.num_slots for node in wide), default=0)
    if shape.slots_per_node > most_slots:
        said = f"more than any node has: the largest {where} has {most_slots} slots"
        return Problem("resources.slots_per_node", said, str(shape.slots_per_node))
    by_pool: dict[str, int] = {}
    for node in wide:
        room = node.num_slots // shape.slots_per_node if node.splittable else 1
        enough = node.num_slots >= shape.slots_per_node
        by_pool[node.pool] = by_pool.get(node.pool, 0) + (room if enough else 0)
    most = max(by_pool.values(), default=0)
    said = f"at most {most} × {shape.slots_per_node} slots fit in one pool, even an empty one"
    return Problem("resources.nodes", said, str(shape.nodes))
