"""Submit several jobs in one transaction: names of the batch, arrays, and what they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.core.jobs.dependencies import find_cycle
from phalanx.core.jobs.events import Submitted
from phalanx.core.tenancy.principals import HOME_CALLER, Caller, actor_of
from phalanx.errors import Problem, SpecInvalid
from phalanx.launch import secret_files
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.workflow import Array, fill_index
from phalanx.services.lifecycle.commit import commit_events, commit_new_many
from phalanx.services.lifecycle.folder_check import check_folder
from phalanx.services.lifecycle.submit import (
    Limits,
    PreparedJob,
    limits_now,
    prepare,
    resume_note,
    store_budget,
    store_diff,
)
from phalanx.services.platform import Platform
from phalanx.services.quotas.submitted import check_submitted
from phalanx.services.workflow import dependencies
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.experiments import params as run_params
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.jobs import JobFacts

MAX_JOBS = 1000
"""Limit on the jobs of one batch, counting every element of its arrays."""
MAX_WAITS = 100_000
"""Limit on the dependencies of all jobs of one batch."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One spec of a batch with the jobs that it makes: one, or one for each index of its array."""

    spec: JobSpec
    jobs: tuple[PreparedJob, ...]

    def with_variables(self, values: Mapping[str, str]) -> BatchEntry:
        """The same with more variables for the ranks of all jobs."""
        found = [replace(one, facts=_with_env(one.facts, values)) for one in self.jobs]
        return replace(self, jobs=tuple(found))


def _with_env(facts: JobFacts, values: Mapping[str, str]) -> JobFacts:
    contract = dict(facts.contract or {})
    return replace(facts, contract={**contract, "env": {**contract.get("env", {}), **values}})


def submit_batch(
    platform: Platform,
    requests: Sequence[SubmitRequest],
    now: int,
    key: RequestKey | None = None,
    *,
    by: Caller = HOME_CALLER,
) -> list[int]:
    """Store all jobs of a batch, or none; returns their numbers in the order of the requests.

    A request with the key of an earlier one returns the jobs of that request. Raises SpecInvalid with every
    problem of every spec, NotFound for code not yet uploaded, and Conflict.
    """
    known = platform.store.view(lambda tx: earlier_answer(tx, key))
    if known is not None:
        return list(known)
    entries = check_batch(platform, requests, by=by)

    def work(tx: Tx) -> list[int]:
        return list(once(tx, key, lambda: store_batch(platform, tx, entries, now, by)))

    return platform.store.transact(work)


def check_batch(
    platform: Platform, requests: Sequence[SubmitRequest], *, by: Caller = HOME_CALLER
) -> list[BatchEntry]:
    """Check every job of a batch, as a dry run does. Raises as `submit_batch`."""
    limits = limits_now(platform)
    found, problems = list[BatchEntry](), list[Problem]()
    for at, request in enumerate(_with_differences(requests)):
        owned = request.model_copy(update={"owner": by.owner_of(request.owner)})
        try:
            found.append(_entry(platform, owned, limits, by))
        except SpecInvalid as error:
            problems += _under(error, at, len(requests))
    count = sum(len(one.jobs) for one in found)
    if count > MAX_JOBS:
        problems.append(Problem("jobs", f"at most {MAX_JOBS} jobs in one batch", str(count)))
    problems = problems or _name_problems([one.spec for one in found])
    if problems:
        raise SpecInvalid(problems)
    return found


def _under(error: SpecInvalid, at: int, count: int) -> list[Problem]:
    """The problems of an entry of a batch with its number, where there are several."""
    under = f"jobs[{at}]." if count > 1 else ""
    return [replace(one, path=under + one.path) for one in error.problems]


def _with_differences(requests: Sequence[SubmitRequest]) -> list[SubmitRequest]:
    """The requests, those without the text of their difference with that of another one of the batch."""
    known = {
        (one.source.commit, one.source.diff_digest): one.source
        for one in requests
        if one.source is not None and one.source.diff
    }
    found = []
    for one in requests:
        source = one.source
        if source is not None and not source.diff and source.diff_digest:
            whole = known.get((source.commit, source.diff_digest))
            if whole is not None:
                text = {"diff": whole.diff, "diff_cut": whole.diff_cut}
                one = one.model_copy(update={"source": source.model_copy(update=text)})
        found.append(one)
    return found


def _entry(platform: Platform, request: SubmitRequest, limits: Limits, by: Caller) -> BatchEntry:
    spec = validate_spec(request.spec)
    if spec.array is None:
        return BatchEntry(spec, (prepare(platform, request, limits=limits, by=by, spec=spec),))
    if request.kind == "run":
        raise SpecInvalid([Problem("array", "is for jobs of kind `submit`")])
    plain, made = resolved(spec), []
    for index in spec.array.indices:
        body = fill_index(plain, index, len(spec.array.indices))
        # An element that is submitted again, on its own, is an array of one index.
        body |= {"name": f"{spec.name}-{index}", "array": str(index)}
        one = request.model_copy(update={"spec": body})
        made.append(prepare(platform, one, limits=limits, by=by))
    return BatchEntry(spec, tuple(made))


def _name_problems(specs: Sequence[JobSpec]) -> list[Problem]:
    """Names that two jobs of the batch have, where a third one depends on them; and circles."""
    names = [spec.name for spec in specs]
    edges = {
        spec.name: [name for _, name in spec.depends_on.named() if name in names] for spec in specs
    }
    wanted = {name for spec in specs for _, name in spec.depends_on.named()}
    problems = [
        Problem(f"jobs[{_last(names, name)}].name", "another job of the batch has this name", name)
        for name in sorted(wanted)
        if names.count(name) > 1
    ]
    circle = find_cycle(edges)
    if circle and not problems:
        said = f"the jobs wait for each other in a circle: {' → '.join(circle)}"
        problems.append(Problem(f"jobs[{names.index(circle[0])}].depends_on", said))
    return problems


def _last(names: Sequence[str], name: str) -> int:
    return max(at for at, one in enumerate(names) if one == name)


def store_batch(
    platform: Platform, tx: Tx, entries: Sequence[BatchEntry], now: int, by: Caller
) -> list[int]:
    """Store all jobs in the caller's transaction. Raises SpecInvalid for unknown dependencies."""
    count = sum(len(one.jobs) for one in entries)
    first = num = jobs.new_num(tx, count)
    names: dict[str, range] = {}
    for entry in entries:
        names[entry.spec.name] = range(num, num + len(entry.jobs))
        num += len(entry.jobs)
    fresh, num, num_waits = list[tuple[Submitted, JobFacts]](), first, 0
    for number, entry in enumerate(entries):
        try:
            waits_for = dependencies.resolve(tx, entry.spec.depends_on, first, names, by)
        except SpecInvalid as error:
            raise SpecInvalid(_under(error, number, len(entries)), error.hint) from None
        num_waits += len(waits_for) * len(entry.jobs)
        if num_waits > MAX_WAITS:
            said = f"at most {MAX_WAITS} dependencies of all jobs of a batch together"
            raise SpecInvalid([Problem("depends_on", said)])
        array, base = entry.spec.array, num
        most = len(entry.jobs) if array is None else array.parallel or len(entry.jobs)
        for at, prepared in enumerate(entry.jobs):
            check_folder(tx, platform.home, prepared.accepted.spec, prepared.request)
            secret_files.store_own(platform.home.job_secrets_file(num), prepared.secrets)
            facts = prepared.facts if array is None else _element(prepared, array, base, at)
            policy = prepared.accepted.policy
            fresh.append((Submitted(num, policy, waits_for, waits_turn=at >= most), facts))
            num += 1
    check_submitted(platform, tx, [facts for _, facts in fresh])
    actor = actor_of(entries[0].jobs[0].request.owner)
    commit_new_many(tx, fresh, now, actor)
    made = [one for entry in entries for one in entry.jobs]
    for num, prepared in enumerate(made, first):
        store_budget(tx, num, prepared.accepted.spec)
        if notes := resume_note(tx, prepared):
            commit_events(tx, num, notes, now, actor)
    run_params.put(tx, [(num, one.params) for num, one in enumerate(made, first)], now)
    for diff in {one.diff: one for one in made}.values():
        store_diff(tx, diff, now)
    return list(range(first, first + count))


def _element(prepared: PreparedJob, array: Array, base: int, at: int) -> JobFacts:
    """The facts of one element, with the variables that name its array."""
    indices = array.indices
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    values = {
        "PHALANX_ARRAY": f"a-{base}",
        "PHALANX_ARRAY_COUNT": len(indices),
        "SLURM_ARRAY_JOB_ID": base,
        "SLURM_ARRAY_TASK_COUNT": len(indices),
        "SLURM_ARRAY_TASK_MIN": indices[0],
        "SLURM_ARRAY_TASK_MAX": indices[-1],
        "SLURM_ARRAY_TASK_STEP": step,
    }
    facts = _with_env(prepared.facts, {name: str(one) for name, one in values.items()})
    return replace(facts, array=base, array_index=indices[at])
