"""From a stored job to what one supervisor is told."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from phalanx.core.jobs.model import Attempt
from phalanx.core.placement import Node
from phalanx.errors import InvariantBroken
from phalanx.kit.ids import job_label
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec import JobSpec, validate_spec
from phalanx.schemas.supervision import Assignment, GangFacts, PythonPackages, WarmStart
from phalanx.services.platform import Platform
from phalanx.store.jobs import StoredJob


def checkpoint_dir(home: HomeLayout, project: str, num: int) -> Path:
    """The job's own folder in the checkpoint store."""
    return home.checkpoints_dir / project / job_label(num)


def _store(spec: JobSpec, project: str, num: int) -> str | None:
    """The job's own prefix in the object store that its spec names."""
    url = spec.checkpoint.store
    return None if url is None else f"{url}/{project}/{job_label(num)}"


def code_dir(home: HomeLayout, num: int, attempt: int) -> Path:
    """The attempt's own copy of the code."""
    return home.attempt_dir(num, attempt) / "code"


def assignments(
    platform: Platform, stored: StoredJob, attempt: Attempt, nodes: dict[str, Node]
) -> list[tuple[Node, Assignment]]:
    """What to start where, by node rank. Raises KeyError for a node that is not in the inventory."""
    spec = validate_spec(stored.facts.spec)
    gang = _gang(platform, stored, attempt, spec)
    shares_on = Counter(share.node for share in attempt.placement.shares)
    made: list[tuple[Node, Assignment]] = []
    for node_rank, share in enumerate(attempt.placement.shares):
        node = nodes[share.node]
        cpus = spec.cpus_per_node or max(1, node.num_cpus // shares_on[share.node])
        made.append((node, _assignment(platform, stored, spec, gang, node_rank, cpus)))
    return made


def _assignment(
    platform: Platform, stored: StoredJob, spec: JobSpec, gang: GangFacts, node_rank: int, cpus: int
) -> Assignment:
    home, num = platform.home, stored.job.num
    workdir = str(code_dir(home, num, gang.attempt))
    return Assignment(
        gang=gang,
        node_rank=node_rank,
        node_dir=str(home.node_dir(num, gang.attempt, node_rank)),
        workdir=workdir,
        cwd=_cwd(stored, workdir),
        command=_command(spec, cpus),
        setup=spec.setup,
        python=_python(spec, home),
        env=_environment(platform, stored, spec),
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


def _command(spec: JobSpec, cpus: int) -> list[str] | str:
    """What each rank runs: the job's command, or the program that readies its framework for it."""
    if spec.run is None:
        raise InvariantBroken("a job was accepted without a command")
    run: list[str] | str = spec.run
    need = spec.resources
    if spec.framework == "ray":
        words = ["raygang", "--cpus", str(max(cpus, need.slots_per_node))]
    elif spec.framework == "mpi":
        words = ["mpigang", "--slots", str(need.slots_per_node // need.slots_per_rank)]
    elif spec.framework == "tensorflow":
        words = ["tfgang", "--slots-per-rank", str(need.slots_per_rank)]
    else:
        return run
    words = ["python", "-m", f"phalanx.train.{words[0]}", *words[1:]]
    return [*words, "--shell", "--", run] if isinstance(run, str) else [*words, "--", *run]


def _cwd(stored: StoredJob, workdir: str) -> str:
    """The caller's directory for `run`, unless it has gone in the meantime."""
    wanted = stored.facts.caller_cwd
    return wanted if wanted is not None and os.path.isdir(wanted) else workdir


def _environment(platform: Platform, stored: StoredJob, spec: JobSpec) -> dict[str, str]:
    caller = stored.facts.caller_env
    below = platform.base_env if caller is None else caller
    return {**below, **spec.env}


def _gang(platform: Platform, stored: StoredJob, attempt: Attempt, spec: JobSpec) -> GangFacts:
    shape, num = stored.job.terms.shape, stored.job.num
    key = spec.checkpoint.encryption
    return GangFacts(
        job=num,
        job_name=stored.facts.name,
        project=stored.facts.project,
        attempt=attempt.num,
        framework=stored.facts.framework,
        num_nodes=len(attempt.placement.shares),
        ranks_per_node=shape.ranks_per_node,
        reference_world=shape.world_size,
        slots_per_rank=spec.resources.slots_per_rank,
        grace_s=stored.job.terms.grace_s,
        checkpoint_dir=str(checkpoint_dir(platform.home, stored.facts.project, num)),
        checkpoint_every=spec.checkpoint.every,
        checkpoint_keep=spec.keep_json(),
        checkpoint_async=spec.checkpoint.in_background,
        checkpoint_compress=None
        if spec.checkpoint.compress == "none"
        else spec.checkpoint.compress,
        checkpoint_store=_store(spec, stored.facts.project, num),
        checkpoint_key_env=key.key_env if key is not None else None,
        checkpoint_key_file=key.key_file if key is not None else None,
        checkpoint_directory=spec.checkpoint.directory,
        metric_lines=list(spec.metrics),
        training=spec.training.given() or None,
        job_started_at=stored.job.started_at,
        stall_after=spec.stall.after_s,
    )
