"""Submit a job: validate the spec, check that it can run here, and store the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.codec import encode
from phalanx.core.contract.resume import ResumeSource
from phalanx.core.contract.secrecy import WITHHELD, shown_spec, withhold
from phalanx.core.contract.trial import TrialContract
from phalanx.core.cost.budgets import BudgetScope
from phalanx.core.experiments.parameters import RunParam
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.events import Submitted
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.scheduling import EmptyCluster
from phalanx.core.slo.objectives import JobClass
from phalanx.core.tenancy.principals import HOME_CALLER, Caller, actor_of
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import NotFound, Problem, SpecInvalid, UserError
from phalanx.kit.text import random_hex
from phalanx.launch import secret_files
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.support import check_supported
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.admission import (
    QuotaContext,
    container_pools,
    facts_of,
    gang_of,
    misfits,
    missing_labels,
    outside_residency,
    over_project,
    over_quota,
    plain_credentials,
)
from phalanx.services.lifecycle.commit import QUEUE, Note, commit_events, commit_new
from phalanx.services.lifecycle.folder_check import check_folder
from phalanx.services.lifecycle.provenance.resume_sources import resolve_resume
from phalanx.services.lifecycle.provenance.run_parameters import params_of_job
from phalanx.services.platform import Platform
from phalanx.services.quotas.submitted import check_submitted
from phalanx.services.residency.rules import ResidencyRules
from phalanx.services.secrets.values import missing
from phalanx.services.workflow import dependencies
from phalanx.store import jobs, resources
from phalanx.store.cost import budgets
from phalanx.store.database import Tx
from phalanx.store.experiments import params as run_params
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.jobs import JobFacts
from phalanx.store.provenance import rows as provenance
from phalanx.store.quotas import rows as quotas
from phalanx.store.resources import Applied


@dataclass(frozen=True, slots=True)
class Accepted:
    """A validated spec, and the same with every default written out and secret values withheld."""

    spec: JobSpec
    resolved: dict[str, Any]
    policy: JobPolicy  # of the spec
    facts: JobFacts  # of the spec alone
    resume: ResumeSource | None = (
        None  # the checkpoint that the job begins from; None: it begins anew
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job has to fit: the limits of projects, and the nodes."""

    projects: Sequence[Applied]
    nodes: Sequence[Node]
    empty: EmptyCluster  # of the nodes
    users: Sequence[Applied] = ()  # quotas of users on the whole platform
    residency: ResidencyRules = ResidencyRules()  # of projects, and stores


def limits_now(platform: Platform) -> Limits:
    """The limits at present. Raises ExecutorUnavailable."""
    nodes = platform.cluster()
    projects, users, stores = platform.store.view(
        lambda tx: (
            resources.projects.now(tx),
            quotas.users.now(tx),
            resources.data_stores.now(tx),
        )
    )
    rules = ResidencyRules.of(projects, stores)
    return Limits(projects, nodes, platform.empty.of(nodes), users, rules)


def check(
    platform: Platform,
    request: SubmitRequest,
    limits: Limits | None = None,
    by: Caller | None = None,
    spec: JobSpec | None = None,
) -> Accepted:
    """Validate a request as a dry run does. Raises SpecInvalid with every problem found.

    `limits` are those of the moment, for a caller that checks many requests. `by` needs the permission to
    submit into the project; None: the platform itself. `spec` is that of the request, where the caller has
    validated it. Raises PermissionDenied.
    """
    spec = validate_spec(request.spec) if spec is None else spec
    if by is not None:
        by.require(Permission.JOBS_SUBMIT, spec.project)
    problems = [*check_supported(spec), *_no_values(spec)]
    # Trials have no caller: a rule of a later release must not end a study.
    problems += [] if by is None else plain_credentials(request.spec)
    problems += [] if by is None else _no_class(spec, platform.classes)
    resume = None
    if not problems:
        policy, facts = spec.to_policy(), facts_of(spec)
        here = limits_now(platform) if limits is None else limits
        gang = replace(gang_of(facts, policy), residency=here.residency.allowed(facts))
        # Trials have no caller: a label that is required later must not end a study.
        labels = [] if by is None else missing_labels(spec, here.projects)
        owner = request.owner if by is None else by.owner_of(request.owner)
        most = QuotaContext(here.projects, here.users, here.nodes)
        problems = [
            *labels,
            *over_project(spec, here.projects, gang),
            *over_quota(spec, most, replace(gang, user=owner)),
            *outside_residency(spec, here.residency),
        ] or [
            *misfits(spec, here.nodes, here.empty, gang),
            *_no_secrets(spec, platform),
        ]
        resume, found = resolve_resume(platform, spec, by, here.residency)
        problems += found
        if not problems:
            pools, problems = container_pools(spec, here.nodes, platform.executor)
            facts = replace(facts, pools=pools)
    if problems:
        raise SpecInvalid(problems)
    return Accepted(spec, shown_spec(resolved(spec)), policy, facts, resume)


def _no_class(spec: JobSpec, classes: Mapping[str, JobClass]) -> list[Problem]:
    """A class that the settings do not have. A trial of a study outlives the settings of its beginning."""
    if spec.job_class is None or spec.job_class in classes:
        return []
    said = f"there is no such job class; the control plane has {', '.join(sorted(classes))}"
    return [Problem("class", said, spec.job_class)]


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A checked job that only has to be stored."""

    request: SubmitRequest
    accepted: Accepted
    facts: JobFacts
    #: values of its secret variables by layer, for a file of its own
    secrets: Mapping[str, Mapping[str, str]]
    #: the user, which must be allowed to read the jobs that it depends on; None: the platform itself
    by: Caller | None = None
    #: the text of the difference of its code to the Git commit; empty: none
    diff: str = ""
    #: parameters of the run, of every source that the submission has
    params: tuple[RunParam, ...] = ()


def submit(
    platform: Platform,
    request: SubmitRequest,
    now: int,
    key: RequestKey | None = None,
    *,
    by: Caller = HOME_CALLER,
) -> tuple[int, dict[str, Any]]:
    """Store a new job; returns its number and its spec with every default written out.

    A request with the key of an earlier one returns the job of that request.
    Raises SpecInvalid, NotFound for code not yet uploaded, and Conflict for the key of another request.
    """
    known = platform.store.view(lambda tx: _submitted(tx, key))
    if known is not None:
        return known
    request = request.model_copy(update={"owner": by.owner_of(request.owner)})
    prepared = prepare(platform, request, by=by)

    def work(tx: Tx) -> int:
        num: int = once(tx, key, lambda: store_prepared(platform, tx, prepared, now))
        return num

    return platform.store.transact(work), prepared.accepted.resolved


def _submitted(tx: Tx, key: RequestKey | None) -> tuple[int, dict[str, Any]] | None:
    """The job of an earlier request with this key."""
    num = earlier_answer(tx, key)
    return None if num is None else (num, dict(jobs.load(tx, num).facts.spec))


def prepare(
    platform: Platform,
    request: SubmitRequest,
    trial: TrialContract | None = None,
    limits: Limits | None = None,
    by: Caller | None = None,
    spec: JobSpec | None = None,
) -> PreparedJob:
    """Check a request, outside of any transaction. `trial` is given for a job that is one of a study.

    `limits`, `by` and `spec` as for `check`. Raises SpecInvalid, UserError, and NotFound for code not yet
    uploaded.
    """
    accepted = check(platform, request, limits, by, spec)
    spec = accepted.spec
    contract = spec.to_contract()
    if spec.array is not None:
        if len(spec.array.indices) != 1:
            said = "is not possible with this request; POST /api/v1/jobs/batch submits arrays"
            raise SpecInvalid([Problem("array", said)])
        own = element_variables(spec.array.indices[0])
        contract = replace(contract, env={**contract.env, **own})
    if request.kind == "run" and request.caller_cwd is None:
        raise UserError("a `run` job needs `caller_cwd`", "send it, or use kind `submit`")
    if request.code is not None and not code.has(platform, request.code):
        raise NotFound(
            f"code {request.code[:12]}… has not been uploaded",
            f"PUT it to /api/v1/code/{request.code} first",
        )
    _check_requirements(platform.home, spec, request.code)
    runs = request.kind == "run"
    contract, caller_env, values = withhold(contract, request.caller_env if runs else None)
    uid = f"{platform.store.database_id}-{random_hex(16)}"
    source, diff = (None, "") if request.source is None else request.source.to_core()
    resume = accepted.resume
    contract = replace(contract, uid=uid, trial=trial, source=source, resume=resume)
    facts = replace(
        accepted.facts,
        owner=request.owner,
        kind=request.kind,
        spec=accepted.resolved,
        contract=encode(contract),
        code_digest=request.code,
        caller_cwd=request.caller_cwd if runs else None,
        caller_env=caller_env,
        study=None if trial is None else trial.study,
        trial=None if trial is None or trial.study is None else trial.trial,
    )
    params = params_of_job(platform, spec, contract, request.code)
    return PreparedJob(request, accepted, facts, values, by, diff, params)


def element_variables(index: int) -> dict[str, str]:
    """The variables of an element of an array that need nothing but its index."""
    return {"PHALANX_ARRAY_INDEX": str(index), "SLURM_ARRAY_TASK_ID": str(index)}


def store_prepared(
    platform: Platform, tx: Tx, prepared: PreparedJob, now: int, actor: str | None = None
) -> int:
    """Store a checked job in the caller's transaction and return its number. Raises Conflict.

    `actor` None: the user that the request names.
    """
    request, spec = prepared.request, prepared.accepted.spec
    check_folder(tx, platform.home, spec, request)
    num = jobs.new_num(tx)
    check_submitted(platform, tx, [prepared.facts])
    # A job that is not stored after all leaves a file that retention deletes.
    secret_files.store_own(platform.home.job_secrets_file(num), prepared.secrets)
    if actor is None:
        actor = actor_of(request.owner)
    waits_for = dependencies.resolve(tx, spec.depends_on, num, {}, prepared.by)
    commit_new(tx, Submitted(num, prepared.accepted.policy, waits_for), prepared.facts, now, actor)
    store_budget(tx, num, spec)
    store_diff(tx, prepared, now)
    run_params.put(tx, [(num, prepared.params)], now)
    if notes := resume_note(tx, prepared):
        commit_events(tx, num, notes, now, actor)
    return num


def resume_note(tx: Tx, prepared: PreparedJob) -> list[Note]:
    """The event that says which checkpoint a new job begins from; none where the spec names none.

    Locks the row of the job that wrote it: a deletion sees the new job, or is seen. Raises NotFound.
    """
    wanted, source = prepared.accepted.spec.checkpoint.resume_from, prepared.accepted.resume
    if wanted is None:
        return []
    data: dict[str, Any] = {"reference": wanted, "job": None, "path": None, "step": None}
    if source is not None and source.job is not None:
        jobs.load(tx, source.job)
    if source is not None:
        data |= {"job": source.job, "path": source.places[0], "step": source.step}
    return [Note("resume_chosen", 0, 0, data)]


def store_diff(tx: Tx, prepared: PreparedJob, now: int) -> None:
    """Store the text of the difference of a new job's code to its Git commit, once for all jobs."""
    if prepared.diff:
        provenance.put_text(tx, prepared.diff, now)


def store_budget(tx: Tx, num: int, spec: JobSpec) -> None:
    """Store the budget that the spec of a new job names."""
    if spec.budget is not None:
        budgets.put_budget(tx, spec.budget.to_core(num))
        tx.touched.topics.add(budgets.BUDGETS)


def change_budget(tx: Tx, num: int, spec: JobSpec) -> None:
    """Give a job the budget that its changed spec names; without one, it has none any more.

    What an earlier budget has told stays told.
    """
    before = budgets.find(tx, BudgetScope.JOB, str(num))
    if spec.budget is not None:
        fresh = spec.budget.to_core(num)
        if before is not None:
            kept = (before.warn, before.state, before.since, before.alerts)
            warn, state, since, alerts = kept
            fresh = replace(fresh, warn=warn, state=state, since=since, alerts=alerts)
        budgets.put_budget(tx, fresh)
    elif before is not None:
        budgets.remove_budget(tx, BudgetScope.JOB, str(num))
    tx.touched.topics.update((budgets.BUDGETS, QUEUE))


def _check_requirements(home: HomeLayout, spec: JobSpec, digest: str | None) -> None:
    """Raise SpecInvalid when the requirements file is not in the uploaded code."""
    name = None if spec.python is None else spec.python.requirements
    if name is not None and (digest is None or not code.holds(home, digest, name)):
        said = "is not in the work directory, or left out by .gitignore or .phalanxignore"
        raise SpecInvalid([Problem("python.requirements", said, name)])


def _no_values(spec: JobSpec) -> list[Problem]:
    """Problems for variables that have `(withheld)` instead of a value."""
    envs = {"env": spec.env} | {f"roles.{name}.env": one.env for name, one in spec.roles.items()}
    said = "the value was withheld: write it again, or store it with `phalanx secrets set`"
    return [
        Problem(f"{path}.{name}", said)
        for path, env in envs.items()
        for name, value in env.items()
        if value == WITHHELD
    ]


def _no_secrets(spec: JobSpec, platform: Platform) -> list[Problem]:
    """Problems for secrets that the spec names and its project does not have."""
    lacks = missing(platform, spec.project, spec.secrets)
    said = f"project {spec.project} has no such secret; `phalanx secrets set NAME` stores one"
    return [Problem("secrets", said, name) for name in lacks]
