"""Change settings of a job after its submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phalanx.core.jobs.events import SettingsChanged
from phalanx.core.jobs.model import JobState
from phalanx.errors import Conflict, Problem, SpecInvalid
from phalanx.kit.text import job_label
from phalanx.kit.units import format_duration
from phalanx.schemas.api.jobs import ChangeRequest
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.support import check_supported
from phalanx.services.lifecycle.admission import (
    QuotaContext,
    facts_of,
    gang_of,
    misfits,
    missing_labels,
    over_project,
    over_quota,
    plain_credentials,
)
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.lifecycle.submit import Limits, change_budget, limits_now
from phalanx.services.platform import Platform
from phalanx.store import jobs, planning
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.tags.rows import SETTINGS, nodes_in

_DESCRIBING = ("name", "description", "labels", "tags", "group")
"""Settings that no decision depends on: those of a job that has ended change, too."""
_US = 1_000_000


def change(
    platform: Platform,
    num: int,
    request: ChangeRequest,
    now: int,
    actor: str,
) -> None:
    """Change settings of a job; settings that are so already change nothing.

    Raises NotFound, SpecInvalid with every problem, and Conflict for a setting that the state fixes.
    """
    wanted = request.model_dump(exclude_unset=True)
    limits = limits_now(platform)

    def work(tx: Tx) -> None:
        stored = jobs.load(tx, num)
        before, after, spec = _difference(stored, wanted)
        if not after:
            return
        _check_state(stored, after, spec, now)
        _check_spec(spec, stored.facts.owner, before, after, limits)
        event = SettingsChanged(before, after, spec.max_duration, *_size_after(after, spec))
        facts = _facts_with(stored.facts, after, spec)
        changed = commit_events(tx, num, [event], now, actor, known=stored, facts=facts)
        if "budget" in after:
            change_budget(tx, num, spec)
        if "nodes" in after:
            jobs.put_size(tx, changed.job)
            # A placement that was reserved for a move may have too many nodes, or too few.
            planning.remove_reservations(tx, [num])

    platform.store.transact(work)


def _difference(
    stored: StoredJob, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], JobSpec]:
    """The settings that change, as they are and as they will be, and the spec with the latter."""
    known = stored.facts.spec
    merged = dict(wanted)
    nodes = merged.pop("nodes", None)
    if nodes is not None:
        merged["resources"] = {**known["resources"], "nodes": nodes}
    if merged.get("labels") is not None:
        both = {**stored.facts.labels, **merged["labels"]}
        merged["labels"] = {key: value for key, value in both.items() if value is not None}
    if merged.get("tags") is not None:
        chosen = dict.fromkeys(known.get("tags") or (), True) | merged["tags"]
        merged["tags"] = [tag for tag, wanted in chosen.items() if wanted]
    merged = {key: _default(key) if one is None else one for key, one in merged.items()}
    spec = validate_spec({**known, **merged})
    new = resolved(spec)
    after = {key: new[key] for key in SETTINGS if key in merged and new[key] != known.get(key)}
    before = {key: known.get(key) for key in after}
    if nodes is not None and nodes_in(new) != nodes_in(known):
        before["nodes"], after["nodes"] = nodes_in(known), nodes_in(new)
    return before, after, spec


def _size_after(after: Mapping[str, Any], spec: JobSpec) -> tuple[int | None, int | None]:
    """The number of nodes and the least number after a change; None, None where they stay."""
    policy = spec.to_policy()
    return (policy.shape.nodes, policy.min_nodes) if "nodes" in after else (None, None)


def _default(name: str) -> Any:
    """The value of a setting that is removed; one that every job has gets the value of new jobs."""
    return JobSpec.model_fields[name].get_default(call_default_factory=True)


def _check_state(stored: StoredJob, after: Mapping[str, Any], spec: JobSpec, now: int) -> None:
    """Raise Conflict for a setting that has no effect, or another one, in the state of the job."""
    job, label = stored.job, job_label(stored.job.num)
    if job.is_terminal:
        late = [name for name in after if name not in _DESCRIBING]
        if late:
            raise Conflict(
                f"{label} has ended ({job.state}): its {late[0]} cannot change",
                f"its {', '.join(_DESCRIBING)} can; `phalanx clone {label}` starts it again",
            )
    if "pool" in after and job.state not in (JobState.QUEUED, JobState.PAUSED):
        held = "" if job.attempt is None else f" and holds slots of {job.attempt.placement.pool}"
        raise Conflict(
            f"{label} is {job.state}{held}: the pool of a running job cannot change",
            f"phalanx pause {label}, change the pool, then phalanx resume {label}",
        )
    limit_s = spec.max_duration if "max_duration" in after else None
    if limit_s is not None and job.started_at is not None:
        ran_s = (now - job.started_at) / _US
        if ran_s >= limit_s:
            raise Conflict(
                f"{label} started {format_duration(ran_s)} ago, longer than a max_duration of "
                f"{format_duration(limit_s)}: it would fail at once",
                f"give a longer one, or stop it: phalanx stop {label}",
            )


def _check_spec(
    spec: JobSpec, owner: str, before: Mapping[str, Any], after: Mapping[str, Any], limits: Limits
) -> None:
    """Raise SpecInvalid for settings that a submission of the job would be refused for."""
    sections = {"resources" if name == "nodes" else name for name in after}
    problems = [one for one in check_supported(spec) if one.path.split(".")[0] in sections]
    facts = facts_of(spec)
    gang = replace(gang_of(facts, spec.to_policy()), residency=limits.residency.allowed(facts))
    problems += plain_credentials({name: after[name] for name in _DESCRIBING if name in after})
    if "priority" in after:
        found = over_project(spec, limits.projects, gang)
        problems += [one for one in found if one.path == "priority"]
    if "labels" in after:
        # Only labels that this change touches: a job may be older than the rule.
        touched = {*before["labels"], *after["labels"]}
        touched = {one for one in touched if before["labels"].get(one) != after["labels"].get(one)}
        found = missing_labels(spec, limits.projects)
        problems += [one for one in found if one.path.removeprefix("labels.") in touched]
    if "nodes" in after:
        problems += _fixed_size(spec)
        found = over_project(spec, limits.projects, gang)
        problems += [one for one in found if one.path == "resources"]
    if "pool" in after or "nodes" in after:
        quotas = QuotaContext(limits.projects, limits.users, limits.nodes)
        problems += over_quota(spec, quotas, replace(gang, user=owner))
        problems += misfits(spec, limits.nodes, limits.empty, gang)
    if problems:
        raise SpecInvalid(problems)


def _fixed_size(spec: JobSpec) -> list[Problem]:
    """Problems of a job with a number of nodes that follows from something else."""
    if spec.roles:
        said = (
            "a gang with several roles keeps its size; `phalanx clone` starts one of another size"
        )
        return [Problem("nodes", said)]
    if spec.placement.domains > 1:
        said = "a gang with `placement.domains` keeps its size; `phalanx clone` starts one of another size"
        return [Problem("nodes", said)]
    if spec.plans[0].need.accelerators is not None:
        return [Problem("nodes", "follows from `resources.accelerators`, which cannot change")]
    return []


def _facts_with(facts: JobFacts, after: Mapping[str, Any], spec: JobSpec) -> JobFacts:
    """The facts with these settings; the rest of the stored spec stays as it is."""
    new = facts_of(spec)
    return replace(
        facts,
        name=new.name,
        labels=new.labels,
        priority=new.priority,
        pools=new.pools,
        spec=_spec_with(facts.spec, after),
    )


def _spec_with(spec: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    new = {**spec, **after}
    if (nodes := new.pop("nodes", None)) is not None:
        new["resources"] = {**new["resources"], "nodes": nodes}
    return new
