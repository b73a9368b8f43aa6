"""Submit a job again: the same spec, code, environment and parameters, with changes if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from phalanx.core.codec import encode
from phalanx.core.contract.job import JobContract, RepeatedJob
from phalanx.core.contract.resume import ResumeReference, ResumeSource
from phalanx.core.contract.secrecy import CALLER_LAYER, WITHHELD
from phalanx.core.contract.trial import Param, TrialContract
from phalanx.core.residency import ResidencyRule, allowed_by, in_words
from phalanx.core.tenancy.principals import Caller
from phalanx.errors import NotFound, Problem, SpecInvalid
from phalanx.kit.text import job_label
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.lifecycle.provenance.attempt_facts import expected_of
from phalanx.services.lifecycle.provenance.resume_sources import FIELD, chosen, source_at
from phalanx.services.lifecycle.submit import PreparedJob, limits_now, prepare, store_prepared
from phalanx.services.platform import Platform
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store import jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.jobs import StoredJob

NOTE = "cloned"
_PARAMS = "params."


@dataclass(frozen=True, slots=True)
class Cloned:
    """The number of the new job, its spec, and what differs from the first job beside the changes."""

    num: int
    spec: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def clone(
    platform: Platform,
    num: int,
    request: CloneRequest,
    now: int,
    by: Caller,
    key: RequestKey | None = None,
) -> Cloned:
    """Store a job with the spec, code, environment and parameters of another one.

    Raises NotFound for a job or code that is not there, CheckpointNotFound, and SpecInvalid with every
    problem of the changed spec, values of secret variables that are missing among them. Raises
    PermissionDenied for a project that the caller may not submit into.
    """
    known = platform.store.view(lambda tx: earlier_answer(tx, key))
    if known is not None:
        earlier = platform.store.view(lambda tx: jobs.load(tx, known))
        return Cloned(known, earlier.facts.spec)
    stored, rows = platform.store.view(
        lambda tx: (jobs.load(tx, num), lineage.checkpoints_of(tx, num))
    )
    source = None
    if request.checkpoint is not None:
        source = source_at(stored, chosen(stored, rows, request.checkpoint))
    prepared, notes = _prepared(platform, stored, request, source, by)
    told = {"job": num, "checkpoint": None if source is None else source.places[0]}

    def store(tx: Tx) -> int:
        if source is not None:
            jobs.load(tx, num)  # locks the row: a deletion sees the new job, or this finds none
            chosen(stored, lineage.checkpoints_of(tx, num), source.places[0])
        made = store_prepared(platform, tx, prepared, now)
        commit_events(tx, made, [Note(NOTE, 0, 0, told)], now, by.actor)
        return made

    made: int = platform.store.transact(lambda tx: once(tx, key, lambda: store(tx)))
    return Cloned(made, prepared.accepted.resolved, notes)


def _prepared(
    platform: Platform,
    stored: StoredJob,
    request: CloneRequest,
    source: ResumeSource | None,
    by: Caller,
) -> tuple[PreparedJob, tuple[str, ...]]:
    facts, contract = stored.facts, contract_of(stored.facts)
    label = job_label(stored.job.num)
    if facts.code_digest is not None and not code.has(platform, facts.code_digest):
        raise NotFound(
            f"the code of {label} is not stored any more: it is deleted a week after the job's end",
            "submit the job from its folder again",
        )
    changes = {key: one for key, one in request.set.items() if not key.startswith(_PARAMS)}
    spec = _with_values(set_paths(facts.spec, changes), request.secrets)
    limits = limits_now(platform)
    if source is not None:
        spec = _kept_inside(spec, stored, source, limits.residency)
        name = PurePath(source.places[0]).name
        spec = set_paths(spec, {FIELD: str(ResumeReference(stored.job.num, name))})
    caller_env, missing = facts.caller_env, list[str]()
    if caller_env is not None:
        names = contract.withheld.get(CALLER_LAYER, ())
        caller_env = {**caller_env, **_given(names, request.secrets)}
        missing = [name for name in names if name not in request.secrets]
    again = SubmitRequest(
        spec=spec,
        code=facts.code_digest,
        kind="run" if facts.kind == "run" else "submit",
        caller_cwd=facts.caller_cwd,
        caller_env=None if caller_env is None else dict(caller_env),
        owner=by.owner_of(request.owner or facts.owner),
    )
    notes: tuple[str, ...] = ()
    if request.require_same and not platform.store.view(lambda tx: expected_of(tx, stored.job.num)):
        raise NotFound(
            f"{label} has reported neither its packages nor fingerprints of its data",
            "it has not started, or ran under an earlier release: clone it without --require-same",
        )
    if missing:
        some = ", ".join(missing[:6]) + (" …" if len(missing) > 6 else "")
        notes = (f"without the secret variables {some}: their values are stored nowhere",)
    trial = _trial_of(contract, request.set, keeps_fork=source is None)
    made = prepare(platform, again, trial, limits, by)
    if source is None and not {FIELD, "checkpoint"} & set(request.set):
        # The same checkpoint again, and not the one that is the newest now.
        made = replace(made, accepted=replace(made.accepted, resume=contract.resume))
    return _repeating(made, stored, contract, request.require_same), notes


def _kept_inside(
    spec: dict[str, Any], stored: StoredJob, source: ResumeSource, rules: ResidencyRules
) -> dict[str, Any]:
    """The spec of a job that begins from a checkpoint, which must stay where the first job had to be.

    Raises SpecInvalid where the new job may not be there, or may not read where the checkpoint is.
    """
    label, own = job_label(stored.job.num), spec.get("residency") or None
    own = [own] if isinstance(own, str) else own
    project = str(spec.get("project") or "default")
    problems = rules.problems(project, own, {"data": {"checkpoint": source.places[0]}})
    allowed = rules.allowed(stored.facts)
    if allowed is not None and not problems:
        of_job = rules.of_job(project, own)
        both = allowed_by([*of_job, ResidencyRule(f"the checkpoint of {label}", allowed)])
        if not both:
            said = (
                f"the checkpoint of {label} must stay in {', '.join(allowed)}; {in_words(of_job)}"
            )
            problems = [Problem("residency", said)]
        spec = {**spec, "residency": list(both or ())}
    if problems:
        raise SpecInvalid([replace(one, path="residency") for one in problems])
    return spec


def _repeating(
    made: PreparedJob, stored: StoredJob, contract: JobContract, require_same: bool
) -> PreparedJob:
    """The job with the source state of the first one, its number, and the checkpoint to begin from."""
    own = replace(
        contract_of(made.facts),
        source=contract.source,
        resume=made.accepted.resume,
        repeats=RepeatedJob(stored.job.num, require_same),
    )
    return replace(made, facts=replace(made.facts, contract=encode(own)))


def _trial_of(
    contract: JobContract, changes: Mapping[str, Any], *, keeps_fork: bool
) -> TrialContract | None:
    """The parameters of the first job, and the checkpoint that its trial began from; None: neither."""
    earlier = contract.trial or TrialContract()
    params: dict[str, Param] = dict(earlier.params)
    for key, value in changes.items():
        if key.startswith(_PARAMS):
            if not isinstance(value, str | int | float | bool | None):
                raise SpecInvalid([Problem(key, "must be a number, a text, true, false or null")])
            params[key.removeprefix(_PARAMS)] = value
    source = earlier.fork_of if keeps_fork else None
    if not params and source is None and earlier.seed is None:
        return None
    return TrialContract(params=params, fork_of=source, seed=earlier.seed)


def set_paths(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a spec with values at dotted paths, such as `resources.nodes`; null removes one.

    Raises SpecInvalid for a path through a value that has no keys.
    """
    found = dict(spec)
    for path, value in changes.items():
        *above, last = path.split(".")
        here = found
        for key in above:
            below = here.get(key)
            if below is not None and not isinstance(below, Mapping):
                raise SpecInvalid([Problem(path, f"{key} has no keys: set it as a whole")])
            here[key] = dict(below or {})
            here = here[key]
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return found


def _with_values(spec: dict[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """The spec with the given values of variables that are withheld in it."""

    def filled(env: Any) -> Any:
        if not isinstance(env, Mapping):
            return env
        return {
            name: secrets.get(name, value) if value == WITHHELD else value
            for name, value in env.items()
        }

    roles = spec.get("roles")
    if isinstance(roles, Mapping):
        roles = {
            name: {**role, "env": filled(role.get("env") or {})}
            if isinstance(role, Mapping)
            else role
            for name, role in roles.items()
        }
    return {**spec, "env": filled(spec.get("env") or {}), "roles": roles or {}}


def _given(names: tuple[str, ...], secrets: Mapping[str, str]) -> dict[str, str]:
    return {name: secrets[name] for name in names if name in secrets}
