"""The job spec: one pydantic model for YAML, Python and the command line."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, field_validator, model_validator

from phalanx.core.contract.job import (
    JobContract,
    RankCommand,
    RoleContract,
    WarmStart,
)
from phalanx.core.contract.pods import CONTAINERS_LABEL, PodContract, TaintToleration
from phalanx.core.cost.budgets import BudgetScope, CostBudget
from phalanx.core.cost.prices import NANO
from phalanx.core.gang.placement import Demand, GangShape
from phalanx.core.gang.roles import WORKER
from phalanx.core.gang.stalls import StallPolicy
from phalanx.core.jobs.budgets import DEFAULT_BUDGETS, Budget, RecoveryPolicy
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.reasons import Cause
from phalanx.errors import InvariantBroken
from phalanx.kit.units import parse_duration
from phalanx.schemas.spec.checkpointing import Checkpointing, MetricLines
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    MAX_NODES,
    Command,
    ConfigFiles,
    Cron,
    Duration,
    FrameworkName,
    Labels,
    Name,
    Names,
    NotEmpty,
    Positive,
    Range,
    Section,
    StallAfter,
    Tags,
    Text,
    Variable,
    Whether,
    WholeFromOne,
    WholeFromZero,
    optional,
)
from phalanx.schemas.spec.pods.mounts import Mount, short_mount
from phalanx.schemas.spec.pods.section import Image, KubernetesSection
from phalanx.schemas.spec.python import PythonSection, short_form
from phalanx.schemas.spec.roles import (
    OUR_PREFIXES,
    OURS,
    Environment,
    PodExtras,
    Resources,
    Role,
    RolePlan,
    plans_of,
    pod_of_role,
)
from phalanx.schemas.spec.training import Training
from phalanx.schemas.spec.workflow import Array, DependsOn, as_afterok, as_indices

SPEC_SCHEMA: Literal[1] = 1
_ONE = Range(1, 1)
_DAY_S = 86400.0


class PlacementWish(Section):
    """Where the gang may be placed. Levels are those of the pool, such as node, rack or zone."""

    required: Name | None = optional("Level of which one domain must hold the gang.")
    domains: Annotated[WholeFromOne, Field(le=MAX_NODES)] = Field(
        default=1,
        description="Domains of the required level that hold equal parts of the gang, one each, such as "
        "TPU slices.",
    )
    preferred: Name | None = optional(
        "Level of which one domain should hold the gang; absent: the narrowest; none: no preference."
    )
    patience: Duration | None = optional(
        "Wait for the preferred level; absent: estimated from the run times of similar jobs."
    )
    selector: dict[Name, Text] = Field(
        default_factory=dict, max_length=100, description="Labels that every node must have."
    )
    tolerate: Names = Field(default_factory=list, description="Taints that the job tolerates.")


ExceptionType = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=200)]
"""The name of a class of exceptions, without its module."""


def _budget_count(value: Any) -> Any:
    return None if value == "unlimited" else value


class RestartBudget(Section):
    """Limit of restarts for one cause without progress in between."""

    count: Annotated[WholeFromZero | None, BeforeValidator(_budget_count)] = Field(
        description="Maximum number of restarts; `unlimited`: no limit."
    )
    per: Duration | None = Field(description="Only restarts within this time count; null: all.")
    first_wait: Duration = Field(description="Wait before the second restart without progress.")
    max_wait: Duration = Field(description="Upper limit of the wait, which doubles.")
    killed: WholeFromZero | None = Field(
        default=None,
        description="Maximum number after SIGKILL, SIGTERM, SIGHUP or SIGINT ended a rank; null: `count`.",
    )

    @classmethod
    def from_core(cls, budget: Budget) -> RestartBudget:
        """The section for a core value."""
        return cls(
            count=budget.count,
            per=budget.per_s,
            first_wait=budget.first_wait_s,
            max_wait=budget.max_wait_s,
            killed=budget.killed,
        )

    def to_core(self) -> Budget:
        """The core value."""
        return _budget(self.count, self.per, self.first_wait, self.max_wait, self.killed)


# Specs name few different ones, a dozen each.
_budget = functools.lru_cache(maxsize=1024)(Budget)


def _default_budget(cause: Cause) -> Any:
    budget = RestartBudget.from_core(DEFAULT_BUDGETS[cause])
    return Field(default_factory=lambda: budget, description=f"Budget for the cause {cause.value}.")


class Recovery(Section):
    """Restart budgets by cause, refilled by progress; what is left out keeps its default."""

    rank_crash: RestartBudget = _default_budget(Cause.RANK_CRASH)
    node_lost: RestartBudget = _default_budget(Cause.NODE_LOST)
    preempted: RestartBudget = _default_budget(Cause.PREEMPTED)
    stalled: RestartBudget = _default_budget(Cause.STALLED)
    start_failed: RestartBudget = _default_budget(Cause.START_FAILED)
    oom: RestartBudget = _default_budget(Cause.OOM)
    user_error: RestartBudget = _default_budget(Cause.USER_ERROR)
    diverged: RestartBudget = _default_budget(Cause.DIVERGED)
    checkpoint_missing: RestartBudget = _default_budget(Cause.CHECKPOINT_MISSING)
    final_checkpoint_not_saved: RestartBudget = _default_budget(Cause.FINAL_CHECKPOINT_NOT_SAVED)
    params_rejected: RestartBudget = _default_budget(Cause.PARAMS_REJECTED)
    secret_unavailable: RestartBudget = _default_budget(Cause.SECRET_UNAVAILABLE)
    secret_manager_unavailable: RestartBudget = _default_budget(Cause.SECRET_MANAGER_UNAVAILABLE)
    cluster_quota: RestartBudget = _default_budget(Cause.CLUSTER_QUOTA)
    unschedulable: RestartBudget = _default_budget(Cause.UNSCHEDULABLE)
    node_drained: RestartBudget = _default_budget(Cause.NODE_DRAINED)
    exit_codes: dict[Annotated[int, Field(ge=1, le=255)], Literal["retry", "fail"]] = Field(
        default_factory=dict, description="What follows an exit code of a rank: retry or fail."
    )
    exceptions: dict[ExceptionType, Literal["retry", "fail"]] = Field(
        default_factory=dict,
        max_length=100,
        description="What follows a type of exception of a rank, such as `ConnectionError`: retry or fail.",
    )
    max_restarts_without_progress: WholeFromOne = Field(
        default=5,
        # The earlier name stands in stored specs; `document` warns of it in new ones.
        validation_alias=AliasChoices("max_restarts_without_progress", "max_barren"),
        description="Limit of consecutive generations without a new step, for unlimited budgets.",
    )

    @field_validator(*(cause.value for cause in Cause), mode="before")
    @classmethod
    def _over_default(cls, value: Any, info: Any) -> Any:
        """`{count: 5}`, `5` and `unlimited` are laid over the default of the cause."""
        if isinstance(value, int) or value == "unlimited":
            value = {"count": value}
        if not isinstance(value, dict):
            return value
        budget = RestartBudget.from_core(DEFAULT_BUDGETS[Cause(info.field_name)]).model_dump()
        if "count" in value:  # a limit that the owner sets holds for every failure
            budget["killed"] = None
        return {**budget, **value}

    def to_core(self) -> RecoveryPolicy:
        """The core value."""
        return _standard_recovery() if not self.model_fields_set else self._policy()

    def _policy(self) -> RecoveryPolicy:
        return RecoveryPolicy(
            budgets=tuple((cause, getattr(self, cause.value).to_core()) for cause in Cause),
            retry_codes=tuple(sorted(c for c, do in self.exit_codes.items() if do == "retry")),
            fail_codes=tuple(sorted(c for c, do in self.exit_codes.items() if do == "fail")),
            retry_exceptions=tuple(sorted(n for n, do in self.exceptions.items() if do == "retry")),
            fail_exceptions=tuple(sorted(n for n, do in self.exceptions.items() if do == "fail")),
            max_no_progress=self.max_restarts_without_progress,
        )


@functools.cache
def _standard_recovery() -> RecoveryPolicy:
    """The policy of a job that says nothing about restarts."""
    return Recovery()._policy()


class Stall(Section):
    """When a job that makes no step counts as stalled: stacks of all ranks are kept, then it restarts."""

    after: StallAfter = Field(
        default="auto",
        description="Limit without a new step: a duration, never, or auto (longest step so far + 45s).",
    )
    start: Duration = Field(
        default=1800.0, description="Limit before the first step of ranks that have started."
    )
    validation: Duration = Field(default=1800.0, description="Limit while ranks validate.")
    save: Duration = Field(default=1800.0, description="Limit while ranks save.")
    compile: Duration = Field(default=1800.0, description="Limit while ranks compile.")
    metrics: Duration | None = optional(
        "Limit without a new metric, such as 5m, once there has been one."
    )

    @model_validator(mode="after")
    def _limits(self) -> Stall:
        for name in ("start", "validation", "save", "compile", "metrics"):
            value = getattr(self, name)
            if value is not None and value < 1.0:
                raise ValueError(f"{name}: a limit has to be at least 1s")
        return self

    def to_core(self) -> StallPolicy:
        """The core value."""
        return StallPolicy(
            watch=self.after != "never",
            after_s=None if self.after in ("auto", "never") else parse_duration(self.after),
            start_s=self.start,
            validation_s=self.validation,
            save_s=self.save,
            compile_s=self.compile,
            metrics_s=self.metrics,
        )


class Warm(Section):
    """Ranks are forked from a process that has imported torch already."""

    enabled: Whether = Field(default=True, description="false: start ranks cold.")
    imports: list[
        Annotated[str, Field(strict=True, max_length=200, pattern=r"^[A-Za-z_][\w.]*$")]
    ] = Field(
        default_factory=list,
        max_length=100,
        description="Modules that the warm process imports, beside torch.",
    )


class CostLimit(Section):
    """What the job may use: the budget that `phalanx budgets set job` changes later."""

    usd: Positive | None = optional("US dollars, where the pools have prices.")
    slot_hours: Positive | None = optional("Hours of slots.")
    pause_at: Annotated[int, Field(strict=True, ge=100, le=1000)] = Field(
        default=110, description="Percent of it at which the running job saves and pauses."
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.usd is None and self.slot_hours is None:
            raise ValueError("needs a limit: usd, slot_hours or both")
        return self

    def to_core(self, num: int) -> CostBudget:
        """The budget of job `num`."""
        return CostBudget(
            BudgetScope.JOB,
            str(num),
            nano_usd=None if self.usd is None else round(self.usd * NANO),
            slot_us=None if self.slot_hours is None else round(self.slot_hours * 3600 * 1_000_000),
            pause_percent=self.pause_at,
        )


class Schedule(Section):
    """Times at which the job is started."""

    cron: Cron = Field(description="Cron fields: minute hour day month weekday.")


def _stall(value: Any) -> Any:
    # Null stands in specs that were stored before there was a default.
    if value is None:
        return {}
    return {"after": value} if isinstance(value, str | int | float) else value


PRIORITIES = {"low": 25, "normal": 50, "high": 75, "urgent": 95}


def _priority(value: Any) -> Any:
    if not isinstance(value, str) or value.isdigit():
        return value
    if value not in PRIORITIES:
        named = ", ".join(f"{name} ({number})" for name, number in PRIORITIES.items())
        raise ValueError(f"write a number from 0 to 100, or one of {named}")
    return PRIORITIES[value]


def _warm(value: Any) -> Any:
    return {"enabled": value} if isinstance(value, bool) else value


class JobSpec(Section):
    """What a user submits. `schema: 1`; every field but `run` has a default."""

    schema_version: Literal[1] = Field(
        default=SPEC_SCHEMA, alias="schema", description="Version of this format."
    )
    name: Name = Field(default="job", description="Name of the job; need not be unique.")
    description: Annotated[str, Field(strict=True, max_length=10_000)] | None = optional(
        "What the job is for, and notes about its results, in words."
    )
    project: Name = Field(default="default", description="Project of the job.")
    labels: Labels = Field(default_factory=dict, description="Labels to filter by.")
    tags: Tags = Field(default_factory=list, description="Words to find the run by: `baseline`.")
    group: Name | None = optional("Runs that belong together have the same group.")
    config_files: ConfigFiles = Field(default_factory=list, description="Files with parameters.")
    job_class: Name | None = Field(
        default=None,
        alias="class",
        description="Class of the job: its objectives are among the settings of the control plane.",
    )
    run: Command | None = optional(
        "The command of every rank: one line for the shell, or a list of words."
    )
    setup: Annotated[str, Field(strict=True, min_length=1, max_length=65_536)] | None = optional(
        "A shell command that runs once per node before the first rank starts."
    )
    python: Annotated[PythonSection, BeforeValidator(short_form)] | None = optional(
        "Python packages that the ranks can import beside those of the node."
    )
    framework: FrameworkName = Field(
        default="torch", description="What the ranks use to communicate; sets their environment."
    )
    env_compat: list[Name] = Field(
        default_factory=list, max_length=100, description="Launchers with variables to set as well."
    )
    workdir: NotEmpty = Field(
        default=".", description="Folder to copy at submit; relative to the spec file."
    )
    image: Image | None = optional(
        "Container image of the ranks, with this version of Phalanx; absent: that of the pool."
    )
    resources: Resources = Field(default_factory=Resources, description="The shape of the gang.")
    roles: dict[Name, Role] = Field(
        default_factory=dict,
        max_length=100,
        description="Further parts of the gang, each with its own shape; without `run`: all parts.",
    )
    data: dict[Name, NotEmpty] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Inputs by name: an absolute path or a URL, copied to each node before the start; "
        "ranks find them at PHALANX_DATA_<NAME>.",
    )
    placement: PlacementWish = Field(
        default_factory=PlacementWish, description="Limits on where the gang is placed."
    )
    residency: Names = Field(
        default_factory=list,
        description="Values of the label `residency` that the pools and stores of the job must have, "
        "beside the rule of its project; empty: only that rule.",
    )
    communication: Literal["normal", "intensive"] = Field(
        default="normal",
        description="intensive: fast links go before price, and slots are not split further than needed.",
    )
    pool: Names = Field(
        default_factory=list, description="Pools in order of preference; absent: any that fits."
    )
    priority: Annotated[int, Field(strict=True, ge=0, le=100), BeforeValidator(_priority)] = Field(
        default=50, description="0 to 100, higher first; or low, normal, high, urgent."
    )
    preemptible: Whether = Field(default=True, description="Whether others may preempt the job.")
    max_duration: Duration | None = optional("The job fails after this duration.")
    grace: Duration = Field(default=30.0, description="Time for ranks to save and exit at a stop.")
    checkpoint: Checkpointing = Field(default_factory=Checkpointing, description="Checkpoints.")
    metrics: MetricLines = Field(
        default_factory=list,
        description="How to read metrics from output: `step {step}: loss {loss}`, or json.",
    )
    training: Training = Field(
        default_factory=Training, description="Precision, batch and guards of `phalanx.train`."
    )
    recovery: Recovery = Field(default_factory=Recovery, description="Restarts.")
    stall: Annotated[Stall, BeforeValidator(_stall)] = Field(
        default_factory=Stall, description="Detection of stalls; `stall: 10m` is short for `after`."
    )
    warm: Annotated[Warm, BeforeValidator(_warm)] = Field(
        default_factory=Warm, description="Start from a warm process; `warm: false` turns it off."
    )
    env: Environment = Field(default_factory=dict, description="Environment variables.")
    secrets: list[Variable] = Field(
        default_factory=list,
        max_length=MAX_ENTRIES,
        description="Variables of the ranks with values that `phalanx secrets` stores.",
    )
    mounts: list[Annotated[Mount, BeforeValidator(short_mount)]] = Field(
        default_factory=list, max_length=32, description="Volumes to mount: `pvc:data:/data:ro`."
    )
    kubernetes: KubernetesSection | None = optional(
        "Keys of the pods in pools that are Kubernetes clusters."
    )
    budget: CostLimit | None = optional(
        "What the job may use: it does not start again at the limit, and pauses above it."
    )
    depends_on: Annotated[DependsOn, BeforeValidator(as_afterok)] = Field(
        default_factory=DependsOn, description="Jobs to wait for; a list: they must succeed first."
    )
    array: Annotated[Array | None, BeforeValidator(as_indices)] = optional(
        "A job for each index: `0-99`, or `0-99%10` for at most ten at once."
    )
    schedule: Schedule | None = optional("Times of regular starts.")

    @field_validator("secrets")
    @classmethod
    def _secrets_not_ours(cls, secrets: list[str]) -> list[str]:
        ours = sorted(n for n in secrets if n in OURS or n.startswith(OUR_PREFIXES))
        if ours:
            raise ValueError(f"Phalanx sets {', '.join(ours)} itself; remove it")
        return secrets

    @field_validator("grace")
    @classmethod
    def _grace_is_short(cls, grace_s: float) -> float:
        if grace_s > _DAY_S:
            raise ValueError("must be at most 24h")
        return grace_s

    @field_validator("max_duration")
    @classmethod
    def _lasts(cls, limit_s: float | None) -> float | None:
        if limit_s is not None and limit_s <= 0:
            raise ValueError("must be longer than 0s; leave it out for no limit")
        return limit_s

    @functools.cached_property
    def plans(self) -> tuple[RolePlan, ...]:
        """Every role, the first one first."""
        own = RolePlan(
            name=WORKER,
            run=self.run,
            need=self.resources,
            framework=self.framework,
            env={},
            training=self.training.given() or None,
            required=True,
            leads=True,
            extras=self._extras,
        )
        return plans_of(own, self.roles)

    @property
    def world_size(self) -> int:
        """Ranks of the first role's world, with the top of the range where the number of nodes is one."""
        return sum(plan.shape.world_size for plan in self.plans if plan.in_lead_world)

    @property
    def _extras(self) -> PodExtras:
        own = self.kubernetes
        if own is None:
            return PodExtras()
        return PodExtras(own.sidecar_cpus, own.sidecar_memory_bytes)

    @property
    def pod_keys(self) -> list[str]:
        """The keys in use that only an executor with containers of its own can honour."""
        given = {
            "image": self.image is not None,
            "mounts": bool(self.mounts),
            "kubernetes": self.kubernetes is not None,
            **{
                f"roles.{one.name}.resources.shm"
                if one.name in self.roles
                else "resources.shm": one.need.shm is not None
                for one in self.plans
            },
            **{
                f"roles.{name}.{key}": bool(getattr(role, key))
                for name, role in self.roles.items()
                for key in ("image", "mounts")
            },
        }
        return [key for key, used in given.items() if used]

    @property
    def shape(self) -> GangShape:
        """The first role, with the top of the range where the number of nodes is one."""
        return self.plans[0].shape

    @property
    def cpus_per_node(self) -> int:
        """CPUs that each node of the first role has to have; 0 where the spec does not say."""
        return self.plans[0].planned_cpus

    def to_policy(self) -> JobPolicy:
        """What the job machine must know of it."""
        first, *others = self.plans
        return JobPolicy(
            shape=first.shape,
            recovery=self.recovery.to_core(),
            grace_s=self.grace,
            max_duration_s=self.max_duration,
            min_nodes=None if first.need.nodes.is_number else first.need.nodes.low,
            role=first.name,
            roles=tuple(one.to_core() for one in others),
            splits=()
            if first.need.accelerators is None
            else first.shape.splits(first.need.slots_per_rank),
        )

    def to_contract(self) -> JobContract:
        """What its ranks run; fixed at submit. Only for specs that `check_supported` has accepted."""
        pod = self._pod()
        return JobContract(
            roles=tuple(self._role_contract(plan, pod) for plan in self.plans),
            setup=self.setup,
            env=dict(self.env),
            secrets=tuple(self.secrets),
            data=dict(self.data),
            warm=WarmStart(self.warm.enabled, tuple(self.warm.imports)),
            python=None if self.python is None else self.python.to_core(),
            pod=pod,
        )

    def _pod(self) -> PodContract | None:
        own = self.kubernetes
        taints = [TaintToleration(key) for key in self.placement.tolerate]
        if own is None:
            if self.image is None and not self.mounts and not taints:
                return None
            own = KubernetesSection()
        found = PodContract(
            image=self.image,
            mounts=tuple(one.to_core() for one in self.mounts),
            service_account=own.service_account,
            node_selector=dict(own.node_selector),
            tolerations=(*taints, *(one.to_core() for one in own.tolerations)),
            labels=dict(own.labels),
            annotations=dict(own.annotations),
            resources=dict(own.resources),
            sidecars=tuple(one.to_core() for one in own.sidecars),
            init=tuple(one.to_core() for one in own.init),
            priority_class=own.priority_class,
            runtime_class=own.runtime_class,
            image_pull_secrets=tuple(own.image_pull_secrets),
            host_network=own.host_network,
        )
        return None if found == PodContract() else found

    def _role_contract(self, plan: RolePlan, pod: PodContract | None) -> RoleContract:
        if plan.run is None:
            raise InvariantBroken("a job was accepted without a command")
        policy = self.checkpoint.to_core()
        return RoleContract(
            name=plan.name,
            command=RankCommand.of(plan.run),
            framework=plan.framework,
            slots_per_node=plan.need.slots_per_node,
            slots_per_rank=plan.need.slots_per_rank,
            isolate_devices=plan.need.isolate_devices,
            cpus_per_node=plan.cpus_per_node,
            memory_per_node_bytes=0 if plan.need.memory is None else plan.need.memory.low,
            shm_per_node_bytes=plan.shm_bytes,
            reference_world=self.world_size if plan.in_lead_world else plan.shape.world_size,
            env=plan.env,
            pod=pod_of_role(pod, self.roles.get(plan.name)),
            training=plan.training,
            checkpoint=policy if plan.in_lead_world else replace(policy, directory=None),
            stall=self.stall.to_core() if plan.required else StallPolicy(watch=False),
            metric_lines=tuple(self.metrics),
            grace_s=self.grace,
            leads=plan.in_lead_world,
            required=plan.required,
        )

    def to_demand(self) -> Demand:
        """What the planner must know of it beyond the gang's shape."""
        first, wish, own = self.plans[0], self.placement, self.kubernetes
        need, selector, tolerates = first.need, dict(wish.selector), set(wish.tolerate)
        if self.pod_keys:
            selector |= dict([CONTAINERS_LABEL])
        if own is not None:
            selector |= own.node_selector
            tolerates |= {one.key for one in own.tolerations}
        return Demand(
            memory_per_node_bytes=first.planned_memory_bytes,
            slot_type=need.accelerator or "",
            device_memory_bytes=0
            if need.accelerator_memory is None
            else need.accelerator_memory.low,
            required=wish.required,
            domains=wish.domains,
            preferred=wish.preferred,
            patience_s=wish.patience,
            selector=tuple(sorted(selector.items())),
            tolerates=tuple(sorted(tolerates)),
            preemptible=self.preemptible,
            intensive=self.communication == "intensive",
            residency=tuple(self.residency) or None,
        )
