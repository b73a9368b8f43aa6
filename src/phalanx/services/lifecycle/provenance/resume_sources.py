"""Find the checkpoint that `checkpoint.resume_from` names, and check that the caller may read it.

A job of another project is one that does not exist, unless the caller may read it. Paths below the folder
of checkpoints, and URLs below the store of a job, belong to that job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePath

from phalanx.core.contract.resume import BEST, LATEST, ResumeReference, ResumeSource
from phalanx.core.residency import allowed_by
from phalanx.core.tenancy.principals import Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.core.training.checkpoints import MANIFEST, Best, is_checkpoint_name
from phalanx.errors import CheckpointNotFound, NotFound, Problem
from phalanx.kit.text import job_label, parse_job_label
from phalanx.schemas.spec.job import JobSpec
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.platform import Platform
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store import jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.lineage import CheckpointRow

FIELD = "checkpoint.resume_from"
_OF_JOB = re.compile(r"(?P<store>.+)/(?P<project>[^/]+)/(?P<job>j-\d{1,18})(?:/.*)?")
_NOT_THERE = "there is no committed checkpoint here"

May = Callable[[str], bool]
"""Whether the caller may read jobs of a project."""


def resolve_resume(
    platform: Platform, spec: JobSpec, by: Caller | None, rules: ResidencyRules
) -> tuple[ResumeSource | None, list[Problem]]:
    """The checkpoint that a spec names, and what is wrong with it.

    `by` None: the platform itself, which reads checkpoints of the job's own project alone.
    """
    text = spec.checkpoint.resume_from
    if text is None:
        return None, []
    reference = ResumeReference.parse(text)

    def may(project: str) -> bool:
        return project == spec.project if by is None else by.may(Permission.JOBS_READ, project)

    def find(tx: Tx) -> tuple[ResumeSource | None, StoredJob | None]:
        if reference.place:
            return _at_place(tx, platform, reference.place, may)
        if reference.job is None:
            return _newest_of_name(tx, spec, may)
        stored = _readable(tx, reference.job, may)
        rows = lineage.valid_checkpoints_of(tx, reference.job)
        return source_at(stored, chosen(stored, rows, reference.which)), stored

    try:
        source, stored = platform.store.view(find)
    except (NotFound, CheckpointNotFound) as error:
        return None, [Problem(FIELD, error.message, text)]
    return source, [] if stored is None else _outside(spec, stored, rules)


def _readable(tx: Tx, num: int, may: May) -> StoredJob:
    """A job that the caller may read. Raises NotFound."""
    stored = jobs.load(tx, num)
    if not may(stored.facts.project):
        raise NotFound(f"there is no job {job_label(num)}")
    return stored


def source_at(stored: StoredJob, row: CheckpointRow) -> ResumeSource:
    """Where the ranks of another job find a checkpoint: on a disk, in the object store, or both."""
    places = [row.path]
    policy = contract_of(stored.facts).roles[0].checkpoint
    if row.copy_state == lineage.STORED and policy.store is not None and "://" not in row.path:
        label, name = job_label(stored.job.num), PurePath(row.path).name
        places.append(f"{policy.store}/{stored.facts.project}/{label}/{name}")
    return ResumeSource(tuple(places), stored.job.num, row.step)


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


def _newest_of_name(
    tx: Tx, spec: JobSpec, may: May
) -> tuple[ResumeSource | None, StoredJob | None]:
    """The newest checkpoint of the newest job of the same name and project that has one; None: none has."""
    if not may(spec.project):
        raise NotFound(f"jobs of project {spec.project} cannot be read")
    num = lineage.newest_job_with_checkpoint(tx, spec.project, spec.name)
    if num is None:
        return None, None
    stored = jobs.load(tx, num)
    row = chosen(stored, lineage.valid_checkpoints_of(tx, num), LATEST)
    return source_at(stored, row), stored


def _at_place(
    tx: Tx, platform: Platform, place: str, may: May
) -> tuple[ResumeSource, StoredJob | None]:
    """The checkpoint at a path or URL, and the job of this database to which it belongs.

    Raises NotFound for one of a job that the caller may not read, and for a folder of this machine without
    a checkpoint. A path that this machine does not have may be one of the nodes.
    """
    here = place if "://" in place else os.path.realpath(place)
    owner = _owner(tx, platform, here)
    if owner is not None and not may(owner.facts.project):
        raise NotFound(_NOT_THERE)
    if "://" not in place:
        _require_checkpoint(Path(here))
        _require_outside(platform, here, owner)
    job = None if owner is None else owner.job.num
    return ResumeSource((here,), job), owner


def _require_checkpoint(path: Path) -> None:
    if not path.exists():
        # Of a folder that this machine has, another one is a mistake.
        if path.parent.is_dir():
            raise NotFound(_NOT_THERE)
        return
    if path.is_dir() and not (path / MANIFEST).is_file():
        with os.scandir(path) as entries:
            if any(is_checkpoint_name(one.name) for one in entries):
                return
    elif path.is_dir():
        return
    raise NotFound(_NOT_THERE)


def _require_outside(platform: Platform, here: str, owner: StoredJob | None) -> None:
    """Raise NotFound for a path in the home that belongs to no job: other projects have theirs there."""
    home = os.path.realpath(platform.home.root)
    if owner is None and (here == home or here.startswith(home + os.sep)):
        raise NotFound(_NOT_THERE)


def _owner(tx: Tx, platform: Platform, place: str) -> StoredJob | None:
    """The job of this database that keeps its checkpoints at a place; None: none does."""
    found = _OF_JOB.fullmatch(place)
    num = None if found is None else parse_job_label(found["job"])
    if found is None or num is None:
        return None
    try:
        stored = jobs.load(tx, num)
    except NotFound:
        return None
    store = contract_of(stored.facts).roles[0].checkpoint.store
    homes = [store, os.path.realpath(platform.home.checkpoints_dir)]
    return stored if found["project"] == stored.facts.project and found["store"] in homes else None


def _outside(spec: JobSpec, source: StoredJob, rules: ResidencyRules) -> list[Problem]:
    """A problem where the checkpoint would leave the places that its job had to stay in."""
    must = rules.allowed(source.facts)
    if must is None:
        return []
    own = list(spec.residency) if spec.residency else None
    here = allowed_by(rules.of_job(spec.project, own))
    if here is not None and set(here) <= set(must):
        return []
    said = f"the checkpoint of {job_label(source.job.num)} must stay in {', '.join(must)}"
    return [Problem("residency", said)]
