"""Store, list, show and remove job templates, and submit jobs from them.

A submission from a template is a submission of the filled spec: no check is left out. The event `templated`
of the job names the template, its version and the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core.contract.secrecy import shown_spec
from phalanx.core.tenancy.principals import Caller
from phalanx.errors import Conflict, NotFound, Problem, SpecInvalid
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.templates import (
    PutTemplateRequest,
    SubmitTemplateRequest,
    TemplateJobs,
    TemplateView,
)
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.template import JobTemplate, read_template
from phalanx.services.batches.submit import check_batch, store_batch
from phalanx.services.lifecycle.admission import plain_credentials
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.platform import Platform
from phalanx.services.queries import views
from phalanx.store.database import Tx
from phalanx.store.idempotency import RequestKey, earlier_answer, once
from phalanx.store.templates import rows
from phalanx.store.templates.rows import WHOLE, TemplateRow
from phalanx.store.tenancy import audit

MOST = 1000
"""Versions of templates that one project may have."""
NOTE = "templated"


def put_template(
    platform: Platform, project: str, name: str, request: PutTemplateRequest, now: int, by: Caller
) -> TemplateView:
    """Store a new version of a template, unless it is the newest one; WHOLE: of the whole platform.

    Raises SpecInvalid with every problem. The spec is checked when every parameter has a default.
    """
    template = read_template(request.template)
    _check(platform, project, template, request, by)
    body = template.model_dump(mode="json")

    def work(tx: Tx) -> TemplateRow:
        before = rows.find(tx, project, name)
        if before is not None and (before.body, before.code_digest) == (body, request.code):
            return before
        if rows.count(tx, project) >= MOST:
            raise Conflict(f"there are {MOST} versions of templates here", "remove some templates")
        version = 1 if before is None else before.version + 1
        row = TemplateRow(project, name, version, body, request.code, now, by.actor)
        rows.insert(tx, row)
        old = None if before is None else before.version
        audit.describe(tx, _place(project, name), old, {"version": version, **body})
        return row

    return _view(platform.store.transact(work))


def _check(
    platform: Platform, project: str, template: JobTemplate, request: PutTemplateRequest, by: Caller
) -> None:
    """Raise SpecInvalid for values of secrets, and for a spec that would be refused with its defaults."""
    problems = plain_credentials(request.template)
    if problems:
        raise SpecInvalid(problems)
    if shown_spec(template.job) != template.job:
        said = "holds values of secrets: store them with `phalanx secrets set`, and name them in `secrets`"
        raise SpecInvalid([Problem("job.env", said)])
    if project != WHOLE and template.job.get("project", project) != project:
        raise SpecInvalid([Problem("job.project", f"must be {project}, or left out")])
    if all(one.default is not None for one in template.parameters.values()):
        spec = _spec(template, project if project != WHOLE else "default", {})
        check_batch(platform, [SubmitRequest(spec=spec, code=request.code)], by=by)


def _spec(template: JobTemplate, project: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The filled spec, in a project. Raises SpecInvalid."""
    filled = template.filled(values)
    spec = validate_spec({"schema": 1, **filled, "project": filled.get("project", project)})
    if spec.project != project:
        said = f"the template is for project {spec.project}"
        raise SpecInvalid([Problem("project", said, project)])
    return resolved(spec)


def list_templates(platform: Platform, projects: Sequence[str] | None) -> list[TemplateView]:
    """The newest version of each template; `projects` are those that the caller may see, None: all."""
    wanted = None if projects is None else [WHOLE, *projects]
    return [_view(one) for one in platform.store.view(lambda tx: rows.newest(tx, wanted))]


def show_template(
    platform: Platform, project: str, name: str, version: int | None = None
) -> TemplateView:
    """A template as jobs of a project may use it: its own, else that of the platform. Raises NotFound."""
    return _view(platform.store.view(lambda tx: _load(tx, project, name, version)))


def remove_template(platform: Platform, project: str, name: str) -> None:
    """Remove a template with all versions; its jobs stay. Raises NotFound."""

    def work(tx: Tx) -> None:
        if not rows.remove(tx, project, name):
            raise NotFound(f"there is no template {name[:200]} here", "phalanx templates ls")
        audit.describe(tx, _place(project, name), "all versions", None)

    platform.store.transact(work)


def submit_template(
    platform: Platform,
    project: str,
    name: str,
    request: SubmitTemplateRequest,
    now: int,
    by: Caller,
    key: RequestKey | None = None,
) -> TemplateJobs:
    """Submit the job of a template into a project, with values for its parameters; an array is possible.

    With `dry_run` it is only checked. Raises NotFound, and SpecInvalid with every problem.
    """
    row = platform.store.view(lambda tx: _load(tx, project, name, request.version))
    spec = _spec(JobTemplate(**row.body), project, request.set)
    if request.dry_run:
        check_batch(platform, [_submission(row, spec, request.owner)], by=by)
        return TemplateJobs(
            jobs=[], version=row.version, spec=shown_spec(spec), code=row.code_digest
        )
    known = platform.store.view(lambda tx: earlier_answer(tx, key))
    if known is None:
        entries = check_batch(platform, [_submission(row, spec, request.owner)], by=by)
        told = {"template": name, "project": row.project, "version": row.version}
        note = Note(NOTE, 0, 0, {**told, "set": dict(request.set)})

        def store(tx: Tx) -> list[int]:
            nums = store_batch(platform, tx, entries, now, by)
            for num in nums:
                commit_events(tx, num, [note], now, by.actor)
            return nums

        known = platform.store.transact(lambda tx: once(tx, key, lambda: store(tx)))
    made = views.batch_view(platform, known)
    return TemplateJobs(
        jobs=made.jobs, version=row.version, spec=shown_spec(spec), code=row.code_digest
    )


def _submission(row: TemplateRow, spec: dict[str, Any], owner: str) -> SubmitRequest:
    return SubmitRequest(spec=spec, code=row.code_digest, owner=owner)


def _load(tx: Tx, project: str, name: str, version: int | None) -> TemplateRow:
    found = rows.find(tx, project, name, version) or rows.find(tx, WHOLE, name, version)
    if found is None:
        which = f"template {name[:200]}" + ("" if version is None else f" of version {version}")
        raise NotFound(
            f"project {project[:200]} has no {which}", "`phalanx templates ls` lists them"
        )
    return found


def _place(project: str, name: str) -> str:
    return f"template {project or 'of the whole platform'}/{name}"


def _view(row: TemplateRow) -> TemplateView:
    return TemplateView(
        project=row.project or None,
        name=row.name,
        version=row.version,
        description=row.body.get("description", ""),
        parameters=row.body.get("parameters", {}),
        job=row.body["job"],
        code=row.code_digest,
        created_at=at_of(row.created_at),
        created_by=row.created_by,
    )
