"""Phalanx's own past jobs as a trace: read from a home's database, or from a file of lines of JSON.

The file (`--save-trace`) carries only what a replay needs: sizes, times, projects and priorities; no
command, no environment, no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.jobs.model import TERMINAL
from phalanx.core.scheduling import Project
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.errors import NotFound, UserError
from phalanx.kit.units import parse_duration
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.project_file import ProjectSpec, UserQuotaSpec, quotas_to_core
from phalanx.sim.jobs import US, TraceJob
from phalanx.store import planning, resources
from phalanx.store.database import Store, Tx, open_store
from phalanx.store.jobs import StoredJob
from phalanx.store.listings.jobs import JobFilter, ListingRange, page
from phalanx.store.quotas import rows as quotas

_PAGE = 500
_VERSION = 1
_DEFAULT_CHECKPOINT_S = 600.0


def past_jobs(root: Path, since_us: int) -> list[TraceJob]:
    """Jobs of this home that were submitted since and have ended after running, oldest first.

    Raises NotFound where there is no database, UserError where nothing has run since.
    """
    store = _open(root)
    try:
        stored = store.view(lambda tx: _ended(tx, since_us))
    finally:
        store.close()
    ran = [one for one in stored if _service_s(one) > 0.0]
    if not ran:
        raise UserError(f"no job of {root} has run and ended in that time", "give a longer --since")
    ran.sort(key=lambda one: (one.job.submitted_at, one.job.num))
    first = ran[0].job.submitted_at
    return [_trace_job(num, one, first) for num, one in enumerate(ran, start=1)]


def past_projects(root: Path) -> list[Project]:
    """The projects of this home with their quotas, by name. Raises NotFound."""
    store = _open(root)
    try:
        applied = store.view(resources.projects.now)
    finally:
        store.close()
    return [ProjectSpec(**one.body).to_core() for one in applied]


def past_users(root: Path) -> tuple[UserQuota, ...]:
    """The quotas of users on the whole platform of this home. Raises NotFound."""
    store = _open(root)
    try:
        applied = store.view(quotas.users.now)
    finally:
        store.close()
    return quotas_to_core({one.name: UserQuotaSpec(**one.body) for one in applied})


def past_policy(root: Path) -> str | None:
    """The planning policy that was set at the control plane of this home, if any. Raises NotFound."""
    store = _open(root)
    try:
        stored = store.view(planning.stored_policy)
    finally:
        store.close()
    return None if stored is None else stored.policy


def _open(root: Path) -> Store:
    file = HomeLayout(root).database_file
    if not file.exists():
        raise NotFound(f"no Phalanx home at {root}: there is no {file}", "choose one with --home")
    return open_store(file)


def _ended(tx: Tx, since_us: int) -> list[StoredJob]:
    found: list[StoredJob] = []
    wanted = JobFilter(states=tuple(TERMINAL), ranges=(ListingRange("submitted", since_us),))
    cursor: str | None = None
    while True:
        some = page(tx, wanted, cursor=cursor, limit=_PAGE)
        found += [one.stored for one in some.jobs]
        cursor = some.cursor
        if cursor is None:
            return found


def _service_s(stored: StoredJob) -> float:
    """Seconds at full size that the job held its slots."""
    job = stored.job
    attained = job.attained_slot_s / max(job.policy.num_slots, 1)
    if attained > 0:
        return attained
    if job.started_at is None or job.ended_at is None:
        return 0.0
    return (job.ended_at - job.started_at) / US


def _trace_job(num: int, stored: StoredJob, first_us: int) -> TraceJob:
    job, facts = stored.job, stored.facts
    return TraceJob(
        num,
        (job.submitted_at - first_us) / US,
        max(_service_s(stored), 1.0),
        job.policy.shape,
        project=facts.project,
        kind=f"{facts.project}/{facts.name}",
        label=facts.name,
        priority=facts.priority,
        min_nodes=job.policy.min_nodes,
        limit_s=job.policy.max_duration_s,
        checkpoint_s=_checkpoint_s(facts.spec),
        roles=job.policy.roles,
        user=facts.owner,
    )


def _checkpoint_s(spec: Any) -> float:
    every = (spec.get("checkpoint") or {}).get("every")
    try:
        return parse_duration(every) if every is not None else _DEFAULT_CHECKPOINT_S
    except (UserError, ValueError, TypeError):
        return _DEFAULT_CHECKPOINT_S  # in steps or epochs, or chosen as it ran


def save(path: Path, found: Iterable[TraceJob]) -> None:
    """Write jobs as lines of JSON behind one line that names the format. Raises UserError."""
    lines = [json.dumps({"phalanx_trace": _VERSION})]
    lines += [json.dumps(asdict(job)) for job in found]
    try:
        path.write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def read(path: Path) -> list[TraceJob]:
    """The jobs of a file that `save` wrote. Raises NotFound, or UserError with the line."""
    if not path.exists():
        raise NotFound(f"no trace at {path}")
    try:
        head, *lines = path.read_text().splitlines() or [""]
        version = json.loads(head)["phalanx_trace"]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a Phalanx trace: the first line names no version") from None
    if version != _VERSION:
        raise UserError(f"{path} has version {version}; this release reads {_VERSION}")
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            row = json.loads(line)
            row["shape"] = GangShape(**row["shape"])
            row["roles"] = tuple(RoleShape(**role) for role in row.get("roles", ()))
            row["pools"], row["speeds"] = tuple(row["pools"]), tuple(row["speeds"])
            found.append(TraceJob(**row))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return found
