"""Submit a job again: the same spec, code, environment and parameters, with changes if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from phalanx.core.contract.job import JobContract
from phalanx.core.contract.secrecy import CALLER_LAYER, WITHHELD
from phalanx.core.contract.trial import ForkSource, Param, TrialContract
from phalanx.core.residency import ResidencyRule, allowed_by, in_words
from phalanx.core.tenancy.principals import Caller
from phalanx.core.training.checkpoints import Best
from phalanx.errors import CheckpointNotFound, NotFound, NotSupported, Problem, SpecInvalid
from phalanx.kit.text import job_label
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.lifecycle.submit import PreparedJob, limits_now, prepare, store_prepared
from phalanx.services.platform import Platform
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store import jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.jobs import StoredJob
from phalanx.store.lineage import CheckpointRow

NOTE = "cloned"
LATEST, BEST = "latest", "best"
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
        if contract_of(stored.facts).roles[0].checkpoint.directory is not None:
            raise NotSupported(
                f"the checkpoints of {job_label(num)} are copies of its script's folder, and only jobs "
                "with phalanx.train begin from a checkpoint of another job",
                "restore the folder with `phalanx checkpoints export`, then submit with --continue",
            )
        source = ForkSource(num, chosen(stored, rows, request.checkpoint).path)
    prepared, notes = _prepared(platform, stored, request, source, by)
    told = {"job": num, "checkpoint": None if source is None else source.path}

    def store(tx: Tx) -> int:
        if source is not None:
            jobs.load(tx, num)  # locks the row: a deletion sees the new job, or this finds none
            chosen(stored, lineage.checkpoints_of(tx, num), source.path)
        made = store_prepared(platform, tx, prepared, now)
        commit_events(tx, made, [Note(NOTE, 0, 0, told)], now, by.actor)
        return made

    made: int = platform.store.transact(lambda tx: once(tx, key, lambda: store(tx)))
    return Cloned(made, prepared.accepted.resolved, notes)


def chosen(stored: StoredJob, rows: list[CheckpointRow], wanted: str) -> CheckpointRow:
    """The valid checkpoint that is named by `latest`, `best`, its step, its folder's name or its path.

    Raises CheckpointNotFound.
    """
    valid = [row for row in rows if row.state == "valid"]
    found: CheckpointRow | None = None
    if wanted == LATEST:
        newest = stored.job.progress.checkpoint_path
        found = next((row for row in valid if row.path == newest), valid[-1] if valid else None)
    elif wanted == BEST:
        best = contract_of(stored.facts).roles[0].checkpoint.keep.best
        found = None if best is None else _best(valid, best)
    elif wanted.isdigit():
        found = next((row for row in reversed(valid) if row.step == int(wanted)), None)
    else:
        found = next((row for row in valid if wanted in (row.path, PurePath(row.path).name)), None)
    if found is None:
        label = job_label(stored.job.num)
        raise CheckpointNotFound(
            f"{label} has no valid checkpoint {wanted!r}",
            f"`phalanx checkpoints {label}` lists them: give latest, best, a step or a name",
        )
    return found


def _best(rows: list[CheckpointRow], best: Best) -> CheckpointRow | None:
    sign = -1.0 if best.mode == "min" else 1.0
    known = [row for row in rows if best.metric in row.metrics]
    return max(known, key=lambda row: sign * row.metrics[best.metric], default=None)


def _prepared(
    platform: Platform,
    stored: StoredJob,
    request: CloneRequest,
    source: ForkSource | None,
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
        source=SourceRequest.of(contract.source),
    )
    notes: tuple[str, ...] = ()
    if missing:
        some = ", ".join(missing[:6]) + (" …" if len(missing) > 6 else "")
        notes = (f"without the secret variables {some}: their values are stored nowhere",)
    trial = _trial_of(contract, request.set, source)
    return prepare(platform, again, trial, limits, by), notes


def _kept_inside(
    spec: dict[str, Any], stored: StoredJob, source: ForkSource, rules: ResidencyRules
) -> dict[str, Any]:
    """The spec of a job that begins from a checkpoint, which must stay where the first job had to be.

    Raises SpecInvalid where the new job may not be there, or may not read where the checkpoint is.
    """
    label, own = job_label(stored.job.num), spec.get("residency") or None
    own = [own] if isinstance(own, str) else own
    project = str(spec.get("project") or "default")
    problems = rules.problems(project, own, {"data": {"checkpoint": source.path}})
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


def _trial_of(
    contract: JobContract, changes: Mapping[str, Any], source: ForkSource | None
) -> TrialContract | None:
    """The parameters of the first job, and the checkpoint to begin from; None: neither."""
    earlier = contract.trial or TrialContract()
    params: dict[str, Param] = dict(earlier.params)
    for key, value in changes.items():
        if key.startswith(_PARAMS):
            if not isinstance(value, str | int | float | bool | None):
                raise SpecInvalid([Problem(key, "must be a number, a text, true, false or null")])
            params[key.removeprefix(_PARAMS)] = value
    if source is None:
        source = earlier.fork_of
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
