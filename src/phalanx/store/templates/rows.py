"""Rows of job templates. A version is never changed: jobs name the version that they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, tuple_

from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import job_templates

WHOLE = ""
"""The project of a template of the whole platform."""


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """One version of a template."""

    project: str  # WHOLE: that of the whole platform
    name: str  # of its own in the project
    version: int  # 1 for the first
    body: Mapping[str, Any]  # schemas.spec.template.JobTemplate as JSON
    code_digest: str | None  # SHA-256 of the code archive; None: no code
    created_at: int  # µs UTC
    created_by: str  # id of a principal


def find(tx: Tx, project: str, name: str, version: int | None = None) -> TemplateRow | None:
    """A version of a template; None as `version`: the newest."""
    here = job_templates.c
    query = select(job_templates).where(here.project == project, here.name == name)
    if version is not None:
        query = query.where(here.version == version)
    found = read(tx, TemplateRow, query.order_by(here.version.desc()).limit(1))
    return found[0] if found else None


def newest(tx: Tx, projects: Sequence[str] | None) -> list[TemplateRow]:
    """The newest version of each template; of some projects where they are given."""
    here = job_templates.c
    last = select(here.project, here.name, func.max(here.version)).group_by(here.project, here.name)
    query = select(job_templates).where(tuple_(here.project, here.name, here.version).in_(last))
    if projects is not None:
        query = query.where(here.project.in_(projects))
    return read(tx, TemplateRow, query.order_by(here.project, here.name))


def count(tx: Tx, project: str) -> int:
    """The number of versions of all templates of a project."""
    query = select(func.count()).where(job_templates.c.project == project)
    return int(tx.conn.execute(query).scalar_one())


def insert(tx: Tx, row: TemplateRow) -> None:
    """Store a new version. Raises StoreError for one that is there."""
    tx.conn.execute(job_templates.insert(), columns_of(row))


def remove(tx: Tx, project: str, name: str) -> bool:
    """Delete a template with all versions; returns whether there was one."""
    here = job_templates.c
    gone = tx.conn.execute(job_templates.delete().where(here.project == project, here.name == name))
    return gone.rowcount > 0


def code_in_use(tx: Tx) -> set[str]:
    """Digests of the code of all templates."""
    here = job_templates.c.code_digest
    return set(tx.conn.execute(select(here).where(here.is_not(None)).distinct()).scalars())
