"""From a stored job to what one supervisor is told."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from pathlib import Path

from phalanx.core.gang.placement import Node
from phalanx.core.gang.roles import Part, part_at
from phalanx.core.jobs.model import Attempt
from phalanx.errors import InvariantBroken
from phalanx.kit.text import job_label
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import JobSpec, validate_spec
from phalanx.schemas.spec.roles import RolePlan
from phalanx.schemas.wire.assignments import (
    Assignment,
    GangFacts,
    PythonPackages,
    RoleFacts,
    WarmStart,
)
from phalanx.services.platform import Platform
from phalanx.store.jobs import StoredJob

# Specs that are kept as they were read. A queue of thousands holds a few of each project's, and a cache
# that is too small for all of them would be emptied by every round through it.
_SPECS = 4096


def checkpoint_dir(home: HomeLayout, project: str, num: int) -> Path:
    """The job's own folder in the checkpoint store."""
    return home.checkpoints_dir / project / job_label(num)


def _store(spec: JobSpec, project: str, num: int, below: str) -> str | None:
    """The prefix of the job, or of one of its roles, in the object store that its spec names."""
    url = spec.checkpoint.store
    return None if url is None else f"{url}/{project}/{job_label(num)}{below}"


def code_dir(home: HomeLayout, num: int, attempt: int) -> Path:
    """The attempt's own copy of the code."""
    return home.attempt_dir(num, attempt) / "code"


def assignments(
    platform: Platform, stored: StoredJob, attempt: Attempt, nodes: dict[str, Node]
) -> list[tuple[Node, Assignment]]:
    """What to start where, by node rank. Raises KeyError for a node that is not in the inventory."""
    spec = _spec(json.dumps(dict(stored.facts.spec)))
    shares_on = Counter(share.node for share in attempt.placement.shares)
    parts = stored.job.policy.parts(len(attempt.placement.shares))
    plans = {plan.name: plan for plan in spec.plans}
    gangs = {
        part.name: _gang(platform, stored, attempt.num, spec, plans[part.name], part)
        for part in parts
    }
    made: list[tuple[Node, Assignment]] = []
    for node_rank, share in enumerate(attempt.placement.shares):
        node, part = nodes[share.node], part_at(parts, node_rank)
        plan = plans[part.name]
        cpus = plan.cpus_per_node or max(1, node.num_cpus // shares_on[share.node])
        ours = _assignment(platform, stored, spec, plan, gangs[part.name], node_rank, cpus)
        if len(parts) > 1:
            ours = ours.model_copy(update={"role": _role(platform, stored, parts, part, node_rank)})
        made.append((node, ours))
    return made


def _role(
    platform: Platform, stored: StoredJob, parts: tuple[Part, ...], part: Part, node_rank: int
) -> RoleFacts:
    return RoleFacts(
        name=part.name,
        node_rank=node_rank - part.first_node,
        first_rank=part.first_rank,
        gang_size=sum(one.world_size for one in parts),
        lead_dir=str(checkpoint_dir(platform.home, stored.facts.project, stored.job.num)),
        leads=part is parts[0],
        required=part.required,
    )


@functools.lru_cache(maxsize=_SPECS)
def _spec(text: str) -> JobSpec:
    """A stored spec. Jobs of a sweep, and the attempts of one job, share most of theirs."""
    return validate_spec(json.loads(text))


def _assignment(
    platform: Platform, stored: StoredJob, spec: JobSpec, plan: RolePlan, gang: GangFacts,
    node_rank: int, cpus: int,
) -> Assignment:  # fmt: skip
    home, num = platform.home, stored.job.num
    workdir = str(code_dir(home, num, gang.attempt))
    return Assignment(
        gang=gang,
        node_rank=node_rank,
        node_dir=str(home.node_dir(num, gang.attempt, node_rank)),
        workdir=workdir,
        cwd=_cwd(stored, workdir),
        command=_command(plan, cpus),
        setup=spec.setup,
        python=_python(spec, home),
        env={**_environment(platform, stored, spec), **plan.env},
        secrets=list(spec.secrets),
        secrets_dir=str(home.secrets_dir(stored.facts.project)) if spec.secrets else None,
        warm=WarmStart(enabled=spec.warm.enabled, imports=list(spec.warm.imports)),
        cpus=cpus,
        server_url=platform.server_url,
        server_file=str(home.server_file),
        token=platform.supervisor_token(num, gang.attempt),
        code=stored.facts.code_digest,
        contact_lost_after_s=platform.contact_lost_after_s,
    )


def _python(spec: JobSpec, home: HomeLayout) -> PythonPackages | None:
    wanted = spec.python
    if wanted is None:
        return None
    return PythonPackages(root=str(home.python_dir), **wanted.model_dump())


def _command(plan: RolePlan, cpus: int) -> list[str] | str:
    """What each rank runs: its role's command, or the program that readies its framework for it."""
    if plan.run is None:
        raise InvariantBroken("a job was accepted without a command")
    run, need = plan.run, plan.need
    if plan.framework == "ray":
        words = ["ray", "--cpus", str(max(cpus, need.slots_per_node))]
    elif plan.framework == "mpi":
        words = ["mpi", "--slots", str(need.slots_per_node // need.slots_per_rank)]
    elif plan.framework == "tensorflow":
        words = ["tensorflow", "--slots-per-rank", str(need.slots_per_rank)]
    else:
        return run
    words = ["python", "-m", f"phalanx.train.frameworks.{words[0]}", *words[1:]]
    return [*words, "--shell", "--", run] if isinstance(run, str) else [*words, "--", *run]


def _cwd(stored: StoredJob, workdir: str) -> str:
    """The caller's directory for `run`, unless it has gone in the meantime."""
    wanted = stored.facts.caller_cwd
    return wanted if wanted is not None and os.path.isdir(wanted) else workdir


def _environment(platform: Platform, stored: StoredJob, spec: JobSpec) -> dict[str, str]:
    caller = stored.facts.caller_env
    below = platform.base_env if caller is None else caller
    return {**below, **spec.env}


def _gang(
    platform: Platform, stored: StoredJob, attempt: int, spec: JobSpec, plan: RolePlan, part: Part
) -> GangFacts:
    num = stored.job.num
    key = spec.checkpoint.encryption
    # What other roles save is theirs: another model, another world, other steps.
    below = "" if plan.leads else f"/roles/{part.name}"
    own = f"{checkpoint_dir(platform.home, stored.facts.project, num)}{below}"
    return GangFacts(
        job=num,
        job_name=stored.facts.name,
        project=stored.facts.project,
        attempt=attempt,
        framework=plan.framework,
        num_nodes=part.num_nodes,
        ranks_per_node=part.ranks_per_node,
        reference_world=plan.shape.world_size,
        slots_per_rank=plan.need.slots_per_rank,
        grace_s=stored.job.policy.grace_s,
        checkpoint_dir=own,
        checkpoint_every=spec.checkpoint.every,
        checkpoint_keep=spec.keep_json(),
        checkpoint_async=spec.checkpoint.in_background,
        checkpoint_compress=None
        if spec.checkpoint.compress == "none"
        else spec.checkpoint.compress,
        checkpoint_store=_store(spec, stored.facts.project, num, below),
        checkpoint_key_env=key.key_env if key is not None else None,
        checkpoint_key_file=key.key_file if key is not None else None,
        checkpoint_directory=spec.checkpoint.directory if plan.leads else None,
        metric_lines=list(spec.metrics),
        training=plan.training,
        job_started_at=stored.job.started_at,
        stall_after=spec.stall.after_s if part.required else "never",
    )
