"""Build the assignment of each supervisor from a stored job."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from phalanx.core.codec import decode
from phalanx.core.contract.gang import GangContract, RolePlace, WorldShape
from phalanx.core.contract.job import JobContract, JobIdentity, RoleContract
from phalanx.core.contract.secrecy import CALLER_LAYER, JOB_LAYER, layered, role_layer
from phalanx.core.gang.placement import Node, NodeShare
from phalanx.core.gang.roles import Part, part_at, world_of
from phalanx.core.jobs.model import Attempt
from phalanx.errors import LaunchError
from phalanx.kit.text import job_label
from phalanx.launch import secret_files
from phalanx.schemas.frameworks import framework
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.wire.assignments import Assignment, PythonPackages, ResumePlaces
from phalanx.services.platform import Platform
from phalanx.services.secrets import values
from phalanx.store.jobs import JobFacts, StoredJob


def checkpoint_dir(home: HomeLayout, project: str, num: int) -> Path:
    """The job's own folder in the checkpoint store."""
    return home.checkpoints_dir / project / job_label(num)


def code_dir(home: HomeLayout, num: int, attempt: int) -> Path:
    """The attempt's own copy of the code."""
    return home.attempt_dir(num, attempt) / "code"


def contract_of(facts: JobFacts) -> JobContract:
    """The contract of a stored job; for one that was submitted to an older release, from its spec.

    Raises SpecInvalid or LaunchError when what is stored cannot be read.
    """
    if facts.contract is None:
        return validate_spec(facts.spec).to_contract()
    try:
        return decode(JobContract, facts.contract)
    except (TypeError, ValueError, KeyError) as error:
        raise LaunchError(f"the job's stored contract cannot be read: {error}") from error


def assignments(
    platform: Platform,
    stored: StoredJob,
    attempt: Attempt,
    nodes: dict[str, Node],
    contract: JobContract,
) -> list[tuple[Node, Assignment]]:
    """The node and assignment of each node rank that launches. Raises KeyError for an unknown node."""
    shares_on = Counter(share.node for share in attempt.placement.shares)
    parts = stored.job.policy.parts(len(attempt.placement.shares))
    roles = {role.name: role for role in contract.roles}
    gangs = {
        part.name: _gang(platform, stored, attempt, roles[part.name], (part, parts), contract)
        for part in parts
    }
    made: list[tuple[Node, Assignment]] = []
    for node_rank in attempt.to_launch:
        share = attempt.placement.shares[node_rank]
        incarnation = attempt.nodes[node_rank].incarnation
        node, part = nodes[share.node], part_at(parts, node_rank)
        cpus = roles[part.name].cpus_per_node or max(1, node.num_cpus // shares_on[share.node])
        place = _place(platform, stored, parts, part, node_rank) if len(parts) > 1 else None
        made.append(
            (
                node,
                _assignment(
                    platform,
                    stored,
                    contract,
                    gangs[part.name],
                    place,
                    (node_rank, incarnation),
                    cpus,
                ).model_copy(update=_devices(node, share)),
            )
        )
    return made


def _devices(node: Node, share: NodeShare) -> dict[str, object]:
    """The accelerators behind a share's slots; those of attempts that an older release placed as well."""
    known = node.devices
    devices = share.devices or tuple(known[slot] for slot in share.slots if slot < len(known))
    return {
        "devices": list(devices),
        "device_kind": node.device_kind,
        "slot_type": node.slot_type,
        "device_memory_bytes": node.device_memory_bytes,
    }


def _place(
    platform: Platform, stored: StoredJob, parts: tuple[Part, ...], part: Part, node_rank: int
) -> RolePlace:
    return RolePlace(
        name=part.name,
        node_rank=node_rank - part.world_node,
        first_rank=part.world_rank,
        gang_size=sum(one.num_ranks for one in parts),
        lead_dir=str(checkpoint_dir(platform.home, stored.facts.project, stored.job.num)),
        role_first_rank=part.ranks_in_world.start,
        role_size=part.num_ranks,
        leads=part.leads,
        required=part.required,
    )


def _assignment(
    platform: Platform,
    stored: StoredJob,
    contract: JobContract,
    gang: GangContract,
    place: RolePlace | None,
    named: tuple[int, int],
    cpus: int,
) -> Assignment:
    """`named` are the node rank and the incarnation of the supervisor."""
    node_rank, incarnation = named
    home, num, facts, python = platform.home, stored.job.num, stored.facts, contract.python
    workdir = str(code_dir(home, num, gang.attempt))
    adapter = framework(gang.role.framework)
    env, own = environment(platform, facts, contract, gang.role)
    return Assignment(
        gang=gang,
        node_rank=node_rank,
        incarnation=incarnation,
        role=place,
        node_dir=str(home.node_dir(num, gang.attempt, node_rank, incarnation)),
        workdir=workdir,
        cwd=_cwd(facts, workdir),
        command=adapter.command(gang.role, cpus).argv,
        setup=contract.setup,
        pod=gang.role.pod or contract.pod,
        python=None if python is None else PythonPackages(root=str(home.python_dir), wanted=python),
        data=dict(contract.data),
        data_root=str(home.data_dir) if contract.data else None,
        env=env,
        own_env=sorted({*contract.env, *gang.role.env} & env.keys()),
        secrets=list(contract.secrets),
        own_secrets=own,
        own_secrets_file=str(home.job_secrets_file(num)) if own else None,
        warm=replace(contract.warm, enabled=contract.warm.enabled and adapter.forkable),
        cpus=cpus,
        limit_cpus=gang.role.cpus_per_node,
        limit_memory_bytes=gang.role.memory_per_node_bytes,
        server_url=platform.server_url,
        server_ca=platform.server_ca,
        server_file=str(home.server_file),
        token=platform.supervisor_token(num, gang.attempt, incarnation),
        code=facts.code_digest,
        resume=_resume(contract, place),
        log_format=platform.log_format,
        log_limit=platform.log_limit,
        contact_lost_after_s=platform.contact_lost_after_s,
    )


def _resume(contract: JobContract, place: RolePlace | None) -> ResumePlaces | None:
    """The checkpoint to begin from, for nodes of the first role; None: none."""
    if contract.resume is None or (place is not None and not place.leads):
        return None
    return ResumePlaces(places=list(contract.resume.places))


def _cwd(facts: JobFacts, workdir: str) -> str:
    """The directory of the caller of `run`, unless it has been removed."""
    wanted = facts.caller_cwd
    return wanted if wanted is not None and os.path.isdir(wanted) else workdir


def secret_values(platform: Platform, stored: StoredJob, node_rank: int) -> dict[str, str]:
    """The values of all secrets of the ranks on one node of the live attempt. Raises NotFound."""
    contract = contract_of(stored.facts)
    attempt = stored.job.attempt
    parts = stored.job.policy.parts(0 if attempt is None else len(attempt.placement.shares))
    part = part_at(parts, node_rank)
    role = next(role for role in contract.roles if role.name == part.name)
    _, own = environment(platform, stored.facts, contract, role)
    found = secret_files.read_own(platform.home.job_secrets_file(stored.job.num), own)
    return found | values.values(platform, stored.facts.project, contract.secrets)


def environment(
    platform: Platform, facts: JobFacts, contract: JobContract, role: RoleContract
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of the ranks of a role, and the layers of those that are withheld.

    A secret of the project that the spec names replaces a variable of the job.
    """
    base = platform.base_env if facts.caller_env is None else facts.caller_env
    layers = ((CALLER_LAYER, base), (JOB_LAYER, contract.env), (role_layer(role.name), role.env))
    plain, own = layered(layers, contract.withheld)
    return plain, {name: layer for name, layer in own.items() if name not in contract.secrets}


def _gang(
    platform: Platform,
    stored: StoredJob,
    attempt: Attempt,
    role: RoleContract,
    place: tuple[Part, tuple[Part, ...]],
    contract: JobContract,
) -> GangContract:
    """The contract of one role; `place` is its part of the placement, and all parts."""
    part, parts = place
    job = JobIdentity(stored.job.num, stored.facts.name, stored.facts.project, contract.uid)
    # Each world has checkpoints of its own: another model, other steps.
    below = "" if role.leads else f"/roles/{role.name}"
    policy = role.checkpoint
    if policy.store is not None:
        policy = replace(policy, store=f"{policy.store}/{job.project}/{job.label}{below}")
    return GangContract(
        job=job,
        attempt=attempt.num,
        world=WorldShape.of(
            [one.ranks_per_node for one in world_of(parts, part) for _ in one.nodes]
        ),
        # A gang that may be split has as many slots on each node as this placement gave it.
        role=replace(role, checkpoint=policy, slots_per_node=part.slots_per_node),
        checkpoint_dir=f"{checkpoint_dir(platform.home, job.project, job.num)}{below}",
        job_started_at=stored.job.started_at,
        trial=contract.trial,
    )
