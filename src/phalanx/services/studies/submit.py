"""Submit a study: check the spec and a trial's job, and store the study with its first commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phalanx.core.codec import encode
from phalanx.core.contract.secrecy import JOB_LAYER, WITHHELD, role_layer, shown_spec, split_secrets
from phalanx.core.search import draw
from phalanx.core.search.events import StudySubmitted
from phalanx.core.search.machine import create
from phalanx.core.search.model import (
    EarlyStopPolicy,
    FailurePolicy,
    FinalPolicy,
    Objective,
    PopulationPolicy,
    Study,
    StudyBudget,
    StudyPolicy,
)
from phalanx.core.tenancy.principals import HOME_CALLER, Caller, actor_of
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import NotFound, Problem, SpecInvalid, UserError
from phalanx.kit.text import study_label
from phalanx.launch import secret_files
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.studies import (
    EarlierStudyView,
    ExpectedRungView,
    StudyCheckView,
    SubmitStudyRequest,
)
from phalanx.schemas.spec.study import (
    PopulationSection,
    StudySpec,
    resolved_study,
    validate_study,
)
from phalanx.schemas.spec.study_checks import (
    forecast,
    sample_params,
    study_problems,
)
from phalanx.search import methods
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.admission import plain_credentials
from phalanx.services.lifecycle.submit import check
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import (
    audited_study,
    study_progress,
    study_topic,
    trial_row,
)
from phalanx.services.studies.earlier_studies import earlier_studies
from phalanx.services.studies.trial_jobs import CALLER, with_shape
from phalanx.store.database import Tx
from phalanx.store.events import kind_of
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.provenance import rows as provenance
from phalanx.store.studies import commands, log, rows
from phalanx.store.studies.rows import StudyHeader
from phalanx.store.tenancy import audit


def check_study(
    platform: Platform, request: SubmitStudyRequest, by: Caller = HOME_CALLER
) -> StudyCheckView:
    """What a study would do, as a dry run. Raises SpecInvalid with every problem found."""
    spec = _checked(platform, request, by)
    policy, earlier = policy_of(spec), earlier_studies(platform, spec, _project(spec))
    assert policy.max_trials is not None
    expected = forecast(spec, policy.max_trials)
    return StudyCheckView(
        spec=shown_spec(resolved_study(spec)),
        method=policy.method,
        method_reason=methods.describe(policy.method, policy.space).removeprefix("method auto: ")
        if policy.method == "auto"
        else "",
        num_cells=policy.space.num_cells(),
        max_trials=policy.max_trials,
        parallel=policy.parallel,
        slots_per_trial=expected.slots_per_trial,
        rungs=[
            ExpectedRungView(
                until=one.until, trials=one.trials, units=one.units, slot_hours=one.slot_hours
            )
            for one in expected.rungs
        ],
        share=expected.share,
        slot_hours=expected.slot_hours,
        warm_start=[
            EarlierStudyView(
                study=study_label(one.num), trials=len(one.trials), dropped=one.dropped
            )
            for one in earlier
        ],
    )


def _project(spec: StudySpec) -> str:
    """The project of a study, which is that of its trials' jobs."""
    return str((spec.job or {}).get("project", "default"))


def _checked(platform: Platform, request: SubmitStudyRequest, by: Caller) -> StudySpec:
    spec = validate_study(request.spec)
    by.require(Permission.JOBS_SUBMIT, _project(spec))
    problems = study_problems(spec) or _unsupported(spec)
    problems += plain_credentials(request.spec)
    if problems:
        raise SpecInvalid(problems)
    if request.kind == "run" and request.caller_cwd is None:
        raise UserError("a `run` study needs `caller_cwd`", "send it, or use kind `submit`")
    if request.code is not None and not code.has(platform, request.code):
        raise NotFound(
            f"code {request.code[:12]}… has not been uploaded",
            f"PUT it to /api/v1/code/{request.code} first",
        )
    if spec.job is None:
        return spec
    job = spec.job_for(sample_params(spec)[0])
    _check_job(platform, request, job, "job", by)
    for shape in policy_of(spec).resources:
        _check_job(
            platform, request, with_shape(job, shape), f"rungs.resources.{shape.unit}: job", by
        )
    return spec


def _check_job(
    platform: Platform, request: SubmitStudyRequest, job: dict[str, Any], under: str, by: Caller
) -> None:
    try:
        check(platform, SubmitRequest(spec=job, owner=request.owner), by=by)
    except SpecInvalid as error:
        found = [replace(one, path=f"{under}.{one.path}") for one in error.problems]
        raise SpecInvalid(found) from None


def _unsupported(spec: StudySpec) -> list[Problem]:
    """What a study may say and this release does not do."""
    found: list[Problem] = []
    found += methods.check(spec.search.method, options_of(spec), spec.to_space())
    if "$" in _project(spec):
        said = "all trials are of one project: write its name"
        found.append(Problem("job.project", said, _project(spec)))
    folder = (spec.job or {}).get("checkpoint")
    directory = folder.get("directory") if isinstance(folder, dict) else None
    if isinstance(directory, str) and "${params" not in directory:
        said = "all trials would share it; leave it out, or name a parameter in it"
        found.append(Problem("job.checkpoint.directory", said, directory))
    return found


def options_of(spec: StudySpec) -> dict[str, Any]:
    """The options of a study's method, those that were given."""
    search = spec.search
    named = {name: getattr(search, name) for name in ("acquisition", "kappa", "init_points")}
    return {**search.options, **{name: one for name, one in named.items() if one is not None}}


def policy_of(spec: StudySpec) -> StudyPolicy:
    """The settings that the study machine uses, from a spec without problems."""
    space, one = spec.to_space(), spec.trials
    max_trials = one.max
    if spec.search.method == "grid":
        cells = draw.grid_size(space)
        max_trials = cells if max_trials is None else min(max_trials, cells)
    if spec.population is not None:
        max_trials = spec.population.size
    objective, stop = spec.objective, spec.early_stop
    first = (spec.first_params(index) for index in range(len(spec.start_with)))
    return StudyPolicy(
        space=space,
        objective=Objective(objective.metric, objective.goal, objective.at, objective.target),
        method=spec.search.method,
        options=options_of(spec),
        seed=spec.search.seed,
        start_with=tuple(params for params in first if params is not None),
        max_trials=max_trials,
        parallel=spec.num_parallel,
        failures=FailurePolicy(one.failed.max, one.failed.share),
        duplicates=one.duplicates,
        rungs=None if spec.rungs is None else spec.rungs.to_core(),
        early_stop=None if stop is None else EarlyStopPolicy(stop.patience, stop.min_delta),
        population=None if spec.population is None else _population(spec, spec.population),
        final=None if spec.final is None else FinalPolicy(spec.final.seeds),
        resources=() if spec.rungs is None else spec.rungs.shapes(),
        budget=StudyBudget(spec.budget.slot_hours, spec.budget.usd, spec.budget.duration),
        jobs=spec.job is not None,
    )


def _population(spec: StudySpec, one: PopulationSection) -> PopulationPolicy:
    return PopulationPolicy(
        size=one.size,
        interval=one.every,
        max=one.max,
        quantile=one.quantile,
        explore="pb2" if spec.search.method == "pb2" else "perturb",
        resample=one.resample,
        factors=one.factors,
        unit=one.unit,
    )


def submit_study(
    platform: Platform,
    request: SubmitStudyRequest,
    now: int,
    key: RequestKey | None = None,
    *,
    by: Caller = HOME_CALLER,
) -> int:
    """Store a new study and return its number; that of an earlier request with the same key.

    Raises SpecInvalid, NotFound for code not yet uploaded, and Conflict for the key of another request.
    """
    known = platform.store.view(lambda tx: earlier_answer(tx, key))
    if known is not None:
        return int(known)
    request = request.model_copy(update={"owner": by.owner_of(request.owner)})
    spec = _checked(platform, request, by)
    earlier = earlier_studies(platform, spec, _project(spec))
    policy = replace(policy_of(spec), prior=tuple(one.trials for one in earlier))
    submission, values = _submission(request, spec)
    source, diff = (None, "") if request.source is None else request.source.to_core()
    if source is not None:
        submission["source"] = encode(source)

    def store(tx: Tx) -> int:
        num = rows.new_num(tx)
        secret_files.store_own(platform.home.study_secrets_file(num), values)
        header = StudyHeader(
            num=num,
            project=_project(spec),
            name=spec.name,
            owner=request.owner,
            labels={},
            spec=shown_spec(resolved_study(spec)),
            submission=submission,
            code_digest=request.code,
            submitted_at=now,
        )
        event = StudySubmitted(num, policy)
        decision = create(event, now)
        study, counts = decision.study, dict[str, int]()
        for trial in study.trials:
            counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
        audit.describe(tx, f"study {study_label(num)}", None, _audited(header, study))
        if diff:
            provenance.put_text(tx, diff, now)
        rows.insert(tx, header, study_progress(study, counts, None))
        rows.put_trials(tx, [trial_row(study, trial, now) for trial in study.trials], [])
        reason = {"state": study.state.value, "code": study.reason.code.value, "message": ""}
        actor = actor_of(request.owner)
        first = log.NewStudyEvent(
            num, 1, now, kind_of(StudySubmitted), None, actor, reason, log.data_of(event)
        )
        log.append(tx, [first])
        commands.add(tx, [(num, 1, command) for command in decision.commands], now)
        tx.touched.topics.add(study_topic(num))
        return num

    return int(platform.store.transact(lambda tx: once(tx, key, lambda: store(tx))))


def _audited(header: StudyHeader, study: Study) -> dict[str, Any]:
    """What the audit log shows of a new study."""
    shown = {name: header.spec.get(name) for name in ("space", "search")}
    own = {"project": header.project, "owner": header.owner, "name": header.name}
    return own | shown | audited_study(study)


def _submission(
    request: SubmitStudyRequest, spec: StudySpec
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """What trials are submitted with, without secret values, and those values by layer."""
    job = dict(spec.job or {})
    values: dict[str, dict[str, str]] = {}
    if isinstance(job.get("env"), dict):
        job["env"] = _withheld(values, JOB_LAYER, job["env"])
    if isinstance(job.get("roles"), dict):
        job["roles"] = {
            name: {**role, "env": _withheld(values, role_layer(name), role["env"])}
            if isinstance(role, dict) and isinstance(role.get("env"), dict)
            else role
            for name, role in job["roles"].items()
        }
    caller = None
    if request.kind == "run" and request.caller_env is not None:
        caller, secret = split_secrets(request.caller_env)
        if secret:
            values[CALLER] = secret
    submission = {
        "kind": request.kind,
        "owner": request.owner,
        "code": request.code,
        "caller_cwd": request.caller_cwd,
        "caller_env": caller,
        "job": job,
    }
    return submission, values


def _withheld(values: dict[str, dict[str, str]], layer: str, env: dict[str, Any]) -> dict[str, Any]:
    plain, secret = split_secrets({name: str(value) for name, value in env.items()})
    if secret:
        values[layer] = secret
    return {name: value if name in plain else WITHHELD for name, value in env.items()}
