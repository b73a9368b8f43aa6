"""Fields of the spec that are understood but not built yet: refused one by one, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.core.contract.job import data_variable
from phalanx.core.frameworks.adapter import REGISTRY, FrameworkAdapter
from phalanx.core.gang import meshes
from phalanx.core.gang.roles import WORKER
from phalanx.errors import Problem
from phalanx.schemas.frameworks import framework
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.pods.checks import pod_problems
from phalanx.schemas.spec.roles import Resources, RolePlan


def _endless(spec: JobSpec) -> bool:
    return spec.resources.nodes.high is None


def _capped(field: str) -> Callable[[JobSpec], bool]:
    def capped(spec: JobSpec) -> bool:
        size = getattr(spec.resources, field)
        return size is not None and size.high is not None and not size.is_number

    return capped


def _cpu_range(spec: JobSpec) -> str | None:
    cpus = spec.resources.cpus
    return None if cpus is None or cpus.is_number else "a range of CPUs"


def _elsewhere(spec: JobSpec) -> bool:
    wish = spec.checkpoint
    return wish.store is not None or wish.encryption is not None or wish.compress != "none"


def _kept_in_disguise(spec: JobSpec) -> bool:
    wish = spec.checkpoint
    changed = wish.encryption is not None or wish.compress != "none"
    return wish.directory is not None and changed


def _trees_elsewhere(spec: JobSpec) -> bool:
    return not framework(spec.framework).stores_checkpoints and _elsewhere(spec)


def _given(*path: str) -> Callable[[JobSpec], Any]:
    def value(spec: JobSpec) -> Any:
        here: Any = spec
        for part in path:
            here = getattr(here, part)
        return here

    return value


# Path, what makes it count as used, what is not there yet, what to write instead.
_NOT_YET: tuple[tuple[str, Callable[[JobSpec], Any], str, str], ...] = (
    ("env_compat", _given("env_compat"), "other launchers' variables", "remove it"),
    ("resources.nodes", _endless, "ranges without an upper end", "write one, as in 2..4"),
    ("resources.cpus", _cpu_range, "ranges of CPUs", "write one number"),
    ("resources.memory", _capped("memory"), "upper limits", "write the least amount only"),
    ("resources.shm", _capped("shm"), "upper limits", "write one size"),
    (
        "resources.accelerator_memory",
        _capped("accelerator_memory"),
        "upper limits",
        "write the least amount only",
    ),
    (
        "checkpoint.directory",
        _kept_in_disguise,
        "folders with encryption or compress",
        "remove these",
    ),
    ("checkpoint", _trees_elsewhere, "store, encryption and compress with jax", "remove these"),
    ("schedule", _given("schedule"), "times in a spec", "use `phalanx schedules create`"),
)


def check_supported(spec: JobSpec) -> list[Problem]:
    """One problem for every field that is used and not built yet; empty when all is well."""
    problems = [
        Problem(path, f"not yet supported: {what}; {instead}")
        for path, used, what, instead in _NOT_YET
        if used(spec)
    ]
    if spec.run is None and not spec.roles:
        problems.append(Problem("run", "is required: the command of every rank"))
    return (
        problems
        + _inputs(spec)
        + _in_all(spec)
        + _role_problems(spec)
        + _domains(spec)
        + _strategy(spec)
        + _devices(spec)
        + _inert(spec)
        + pod_problems(spec.mounts, spec.kubernetes)
        + [
            problem
            for name, role in spec.roles.items()
            if role.mounts
            for problem in pod_problems(spec.mounts, None, name, role.mounts)
        ]
    )


def _domains(spec: JobSpec) -> list[Problem]:
    """Parts of the gang in domains of their own that cannot be equal, or of no level."""
    num, level, nodes = spec.placement.domains, spec.placement.required, spec.resources.nodes
    if num == 1:
        return []
    said = None
    if level in (None, "node"):
        said = "needs the level of the domains, as in {required: slice, domains: 2}"
    elif spec.roles:
        said = (
            "is not possible with `roles`: the gang is divided into equal parts; remove one of both"
        )
    elif spec.resources.accelerators is not None or nodes.low != nodes.high:
        said = "needs one number of nodes: write it in `resources.nodes`"
    elif nodes.low % num:
        said = f"must divide the {nodes.low} nodes of the gang, so that its parts are equal"
    return [] if said is None else [Problem("placement.domains", said, str(num))]


def _inert(spec: JobSpec) -> list[Problem]:
    """Keys of `training` that the library of the framework does not have."""
    problems = []
    for plan in spec.plans:
        keys = framework(plan.framework).training_keys
        own = plan.name in spec.roles and spec.roles[plan.name].training is not None
        at = f"roles.{plan.name}." if own else ""
        for key in () if keys is None else sorted(set(plan.training or {}) - keys):
            said = f"has no effect with {plan.framework}, which has {', '.join(sorted(keys or ()))}"
            problems.append(Problem(f"{at}training.{key}", said))
    return problems


def _devices(spec: JobSpec) -> list[Problem]:
    """Devices to be isolated where the framework starts the processes that use them."""
    problems = []
    for plan in spec.plans:
        if plan.need.isolate_devices and framework(plan.framework).one_rank_per_node:
            at = f"roles.{plan.name}." if plan.name in spec.roles else ""
            said = (
                f"is not possible with {plan.framework}, which divides the devices of a node itself"
            )
            problems.append(Problem(f"{at}resources.isolate_devices", said))
    return problems


def _inputs(spec: JobSpec) -> list[Problem]:
    """Inputs that cannot be found from a node, or share a variable."""
    problems, taken = [], dict[str, str]()
    for name, where in spec.data.items():
        if not where.startswith("/") and "://" not in where:
            problems.append(Problem(f"data.{name}", "must be an absolute path or a URL", where))
        other = taken.setdefault(data_variable(name), name)
        if other != name:
            said = f"has the variable of {other}, {data_variable(name)}; choose another name"
            problems.append(Problem(f"data.{name}", said))
    return problems


def _strategy(spec: JobSpec) -> list[Problem]:
    """A layout of ranks that does not fit every size that the gang may have."""
    problems = []
    for plan in spec.plans:
        sizes, nodes = (plan.training or {}).get("strategy"), plan.need.nodes
        if sizes is None or not framework(plan.framework).lays_out_ranks or nodes.high is None:
            continue
        if plan.shares_world:
            continue  # the layout is that of the first role
        ranks = plan.shape.ranks_per_node
        worlds = [num * ranks for num in range(nodes.low, nodes.high + 1)]
        if plan.leads and any(one.shares_world for one in spec.plans):
            worlds = [spec.world_size]
        found = meshes.problem(sizes, worlds) or (
            _across_nodes(sizes, spec) if plan.leads else None
        )
        if found is not None:
            own = plan.name in spec.roles and spec.roles[plan.name].training is not None
            at = f"roles.{plan.name}." if own else ""
            problems.append(Problem(f"{at}training.strategy", found))
    return problems


def _across_nodes(sizes: Any, spec: JobSpec) -> str | None:
    """Why groups of tensor parallel ranks would lie across nodes that are not alike; None: they do not."""
    nodes = {one.name: one.shape.ranks_per_node for one in spec.plans if one.in_lead_world}
    group = spec.world_size if sizes == "tp" else 1
    group = sizes.get("tp", 1) if isinstance(sizes, Mapping) else group
    if len(set(nodes.values())) == 1 or all(ranks % group == 0 for ranks in nodes.values()):
        return None
    each = ", ".join(f"{name} has {ranks}" for name, ranks in nodes.items())
    return f"tp={group} does not divide the ranks on every node of the world: {each}"


def _in_all(spec: JobSpec) -> list[Problem]:
    """What speaks against slots that are given in all."""
    _, *others = spec.plans
    said = "supported for the first role only; write nodes and slots_per_node"
    return [
        Problem(f"roles.{plan.name}.resources.accelerators", said)
        for plan in others
        if plan.need.accelerators is not None
    ]


def _role_problems(spec: JobSpec) -> list[Problem]:
    """What is wrong with a job's roles, beside the form of each."""
    if not spec.roles:
        return []
    found: list[Problem] = []
    if spec.run is None and spec.resources != Resources():
        said = "has no effect without `run`; write in `roles` what each role needs"
        found.append(Problem("resources", said))
    if spec.run is not None and WORKER in spec.roles:
        said = "is the name of the role that `run` describes; give this role another name"
        found.append(Problem(f"roles.{WORKER}", said))
    for plan in spec.plans:
        at = "" if plan.leads and spec.run is not None else f"roles.{plan.name}."
        found += _faults(plan, at) + _framework_problems(spec, plan, at)
    return found + _world_problems(spec)


def _framework_problems(spec: JobSpec, plan: RolePlan, at: str) -> list[Problem]:
    """What is wrong with the framework of a role among the others."""
    one_world = all(one.in_lead_world for one in spec.plans)

    def able(one: FrameworkAdapter) -> bool:
        return one.on_unequal_nodes if one_world else one.in_roles

    if able(framework(plan.framework)):
        return []
    known = ", ".join(one.name for one in REGISTRY.values() if able(one))
    where = "on nodes that differ" if one_world else "in a gang with several roles"
    said = f"not supported {where}; write one of {known}"
    if one_world and framework(plan.framework).one_rank_per_node:
        said = (
            f"{plan.framework} starts an equal number of processes on each node: give all nodes the "
            f"same resources, in one role with `resources.nodes`; or write one of {known}"
        )
    return [Problem(f"{at}framework", said, plan.framework)]


def _world_problems(spec: JobSpec) -> list[Problem]:
    """What a role cannot say of its own where it shares the world of the first one."""
    found: list[Problem] = []
    first = spec.plans[0]
    for name, role in spec.roles.items():
        if role.world == "own":
            continue
        if name == first.name:
            said = "the first role has a world of its own, which the others may share; remove it"
            found.append(Problem(f"roles.{name}.world", said, role.world))
            continue
        if role.training is not None:
            said = (
                f"ranks of one world have one section `training`, that of {first.name}; remove it"
            )
            found.append(Problem(f"roles.{name}.training", said))
        if role.framework not in (None, first.framework):
            said = f"ranks of one world have one framework, {first.framework} here; remove it"
            found.append(Problem(f"roles.{name}.framework", said, role.framework))
        if not role.required:
            said = "a world cannot go on without some of its ranks; remove it, or the shared world"
            found.append(Problem(f"roles.{name}.required", said))
    return found


def _faults(plan: RolePlan, at: str) -> list[Problem]:
    found: list[Problem] = []
    if plan.run is None:
        found.append(Problem(f"{at}run", "is required: the job has no `run` of its own"))
    if not plan.need.nodes.is_number:
        said = (
            f"a gang with several roles has a fixed size: write one number, such as "
            f"{plan.need.nodes.high or plan.need.nodes.low}; only nodes that are all alike, in a job "
            "with one role, may become more and fewer"
        )
        found.append(Problem(f"{at}resources.nodes", said))
    if plan.leads and not plan.required:
        said = "must be true for the first role; list a required role first"
        found.append(Problem(f"{at}required", said))
    if plan.leads and not plan.need.slots_per_node:
        said = "the first role needs at least one slot on each node"
        found.append(Problem(f"{at}resources.slots_per_node", said))
    if at and plan.need.accelerator_memory is not None:
        path = f"{at}resources.accelerator_memory"
        found.append(Problem(path, "not yet supported in roles; remove it"))
    for field in ("memory", "shm"):
        size = getattr(plan.need, field)
        if at and size is not None and size.high is not None and not size.is_number:
            said = "not yet supported: upper limits; write the least amount only"
            found.append(Problem(f"{at}resources.{field}", said))
    cpus = plan.need.cpus
    if at and cpus is not None and not cpus.is_number:
        found.append(Problem(f"{at}resources.cpus", "not yet supported: ranges; write one number"))
    return found
