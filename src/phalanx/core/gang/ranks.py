"""Placement to environment: what every rank finds when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.gang import networks
from phalanx.core.gang.roles import WORKER
from phalanx.kit.text import job_label


@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """What ranks of one role of a gang with several know of the rest.

    `first_rank` is the number in the gang of the role's rank 0, `masters` maps every role's name to
    where its rank 0 is, and `lead_dir` is where the first role keeps its checkpoints.
    """

    name: str
    first_rank: int
    gang_size: int
    lead_dir: str
    masters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GangEnvironment:
    """What all ranks of one generation, of one role, have in common.

    `checkpoint_dir` is the job's own folder, or that of a role which is not the first.

    `interface` is this node's network interface towards rank 0, where the framework asks for it;
    `code_dir` the attempt's own copy of the code.
    """

    job: int
    job_name: str
    project: str
    attempt: int
    generation: int
    restarts: int
    framework: str
    num_nodes: int
    ranks_per_node: int
    reference_world: int
    cpus_per_node: int
    master_address: str
    master_port: int
    grace_s: float
    checkpoint_dir: str
    checkpoint_every: str | None = None
    checkpoint_keep: Mapping[str, object] | None = None
    checkpoint_async: bool = True
    checkpoint_compress: str | None = None
    checkpoint_store: str | None = None
    checkpoint_key_env: str | None = None
    checkpoint_key_file: str | None = None
    training: Mapping[str, object] | None = None
    restart_cause: str = ""
    job_started_at: int | None = None
    resume_path: str | None = None
    slots_per_rank: int = 1
    interface: str | None = None
    code_dir: str | None = None
    user_env: Mapping[str, str] = field(default_factory=dict)
    role: RoleEnvironment | None = None


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Paths of one rank's own files on its node."""

    report_file: str
    control_file: str
    error_file: str


def omp_num_threads(ranks_per_node: int, cpus_per_node: int) -> int | None:
    """Threads a rank may use: an equal share of the node's CPUs; None leaves a lone rank alone.

    A lone rank keeps the library's default, as under torchrun.
    """
    if ranks_per_node == 1:
        return None
    return max(1, cpus_per_node // ranks_per_node)


def rank_environment(
    gang: GangEnvironment, node_rank: int, local_rank: int, files: RankFiles
) -> dict[str, str]:
    """Variables of one rank, to be laid over the node's own environment. `node_rank` is in its role.

    The user's `env` is laid under ours: a spec cannot break the rendezvous, but may set OMP_NUM_THREADS.
    """
    rank = node_rank * gang.ranks_per_node + local_rank
    world = gang.num_nodes * gang.ranks_per_node
    training = dict(gang.training or {})
    network = training.pop("network", None)
    env = {**_network(network), **gang.user_env}
    threads = omp_num_threads(gang.ranks_per_node, gang.cpus_per_node)
    if threads is not None:
        env.setdefault("OMP_NUM_THREADS", str(threads))
    env.update(_phalanx(gang, files))
    if gang.role is not None:
        env.update(_role(gang.role, rank))
    if gang.training is not None:
        env["PHALANX_TRAINING"] = json.dumps(training, sort_keys=True)
    if gang.framework == "none":
        env.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local_rank))
        env.update(LOCAL_WORLD_SIZE=str(gang.ranks_per_node), NODE_RANK=str(node_rank))
        return env
    env.update(_torch(gang, node_rank, local_rank, files))
    for name, value in _chosen(gang, local_rank).items():
        env.setdefault(name, value)
    env.update(_FAMILIES.get(gang.framework, _nothing)(gang, node_rank, local_rank))
    return env


def _nothing(gang: GangEnvironment, node_rank: int, local_rank: int) -> dict[str, str]:
    return {}


def _chosen(gang: GangEnvironment, local_rank: int) -> dict[str, str]:
    """What the user's `env` may set otherwise."""
    if gang.framework == "jax":
        first = local_rank * gang.slots_per_rank
        devices = range(first, first + gang.slots_per_rank)
        return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, devices))}
    if gang.framework == "horovod":
        # Who dies is noticed by the platform; a rank that is only slow must not end the others.
        patient = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
        return patient | ({} if gang.interface is None else {"HOROVOD_GLOO_IFACE": gang.interface})
    return {}


def _jax(gang: GangEnvironment, node_rank: int, local_rank: int) -> dict[str, str]:
    """`jax.distributed.initialize()` without arguments finds the gang in Open MPI's variables.

    It reads no others for the number of processes and the place among them.
    """
    address = f"{gang.master_address}:{gang.master_port}"
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_PORT": str(gang.master_port),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
        "OMPI_COMM_WORLD_SIZE": str(gang.num_nodes * gang.ranks_per_node),
        "OMPI_COMM_WORLD_RANK": str(node_rank * gang.ranks_per_node + local_rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
    }


def _horovod(gang: GangEnvironment, node_rank: int, local_rank: int) -> dict[str, str]:
    """As `horovodrun --gloo` has it; the rendezvous listens on the port of rank 0."""
    return {
        "HOROVOD_RANK": str(node_rank * gang.ranks_per_node + local_rank),
        "HOROVOD_SIZE": str(gang.num_nodes * gang.ranks_per_node),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(gang.ranks_per_node),
        "HOROVOD_CROSS_RANK": str(node_rank),
        "HOROVOD_CROSS_SIZE": str(gang.num_nodes),
        "HOROVOD_HOSTNAME": f"node{node_rank}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": gang.master_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(gang.master_port),
    }


_FAMILIES = {"jax": _jax, "horovod": _horovod}


def _network(wish: object) -> dict[str, str]:
    """Variables for the interconnect that a spec names."""
    if not isinstance(wish, Mapping):
        return {}
    return networks.variables(wish.get("preset"), wish.get("interface"), wish.get("debug"))


def _torch(
    gang: GangEnvironment, node_rank: int, local_rank: int, files: RankFiles
) -> dict[str, str]:
    port, nodes, local = str(gang.master_port), str(gang.num_nodes), str(gang.ranks_per_node)
    run_id = f"{job_label(gang.job)}-a{gang.attempt:03d}-g{gang.generation:03d}"
    return {
        "MASTER_ADDR": gang.master_address,
        "MASTER_PORT": port,
        "RANK": str(node_rank * gang.ranks_per_node + local_rank),
        "WORLD_SIZE": str(gang.num_nodes * gang.ranks_per_node),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_NAME": WORKER if gang.role is None else gang.role.name,
        "ROLE_RANK": str(node_rank * gang.ranks_per_node + local_rank),
        "ROLE_WORLD_SIZE": str(gang.num_nodes * gang.ranks_per_node),
        "NODE_RANK": str(node_rank),
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": local,
        "PET_NODE_RANK": str(node_rank),
        "PET_MASTER_ADDR": gang.master_address,
        "PET_MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(gang.restarts),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": files.error_file,
        # torch's own store would be looked for in an agent that is not there; and a store that
        # outlives a generation deadlocks the next one.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _role(role: RoleEnvironment, rank: int) -> dict[str, str]:
    return {
        "PHALANX_ROLE": role.name,
        "PHALANX_GANG_RANK": str(role.first_rank + rank),
        "PHALANX_GANG_SIZE": str(role.gang_size),
        "PHALANX_ROLES": json.dumps(role.masters),
        "PHALANX_LEAD_CHECKPOINT_DIR": role.lead_dir,
    }


def _phalanx(gang: GangEnvironment, files: RankFiles) -> dict[str, str]:
    env = {
        "PHALANX_JOB": job_label(gang.job),
        "PHALANX_JOB_NAME": gang.job_name,
        "PHALANX_PROJECT": gang.project,
        "PHALANX_ATTEMPT": str(gang.attempt),
        "PHALANX_GENERATION": str(gang.generation),
        "PHALANX_CHECKPOINT_DIR": gang.checkpoint_dir,
        "PHALANX_REPORT_FILE": files.report_file,
        "PHALANX_CONTROL_FILE": files.control_file,
        "PHALANX_REFERENCE_WORLD": str(gang.reference_world),
        "PHALANX_GRACE_S": f"{gang.grace_s:g}",
    }
    if gang.restart_cause:
        env["PHALANX_RESTART_CAUSE"] = gang.restart_cause
    if gang.checkpoint_every is not None:
        env["PHALANX_CHECKPOINT_EVERY"] = gang.checkpoint_every
    if gang.checkpoint_keep is not None:
        env["PHALANX_CHECKPOINT_KEEP"] = json.dumps(gang.checkpoint_keep, sort_keys=True)
    if gang.job_started_at is not None:
        env["PHALANX_JOB_STARTED_AT"] = str(gang.job_started_at)
    if not gang.checkpoint_async:
        env["PHALANX_CHECKPOINT_ASYNC"] = "0"
    given = {
        "PHALANX_CHECKPOINT_COMPRESS": gang.checkpoint_compress,
        "PHALANX_CHECKPOINT_STORE": gang.checkpoint_store,
        "PHALANX_CHECKPOINT_KEY_ENV": gang.checkpoint_key_env,
        "PHALANX_CHECKPOINT_KEY_FILE": gang.checkpoint_key_file,
    }
    env.update({name: value for name, value in given.items() if value is not None})
    if gang.resume_path is not None:
        env["PHALANX_RESUME_PATH"] = gang.resume_path
    if gang.code_dir is not None:
        env["PHALANX_CODE_DIR"] = gang.code_dir
    return env
