"""Read and write accounts, members of groups, and granted roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import or_, select, text, union

from phalanx.core.tenancy.roles import UserRole
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import accounts, group_members, role_grants

_ORDER = list(UserRole)
LOGIN = "login"
"""What made an account that nothing but a login over the identity provider made."""


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A user or a service account."""

    id: str  # such as user:ada
    created_at: int  # µs UTC
    created_by: str  # id of a principal, or LOGIN
    identity: str | None = None  # core.tenancy.identities: what logs in as this account
    disabled_at: int | None = None  # µs UTC; None: it may log in


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role of a user, a service account or a group in one place."""

    subject: str  # such as group:ml
    project: str  # empty: the whole platform
    role: str
    granted_at: int  # µs UTC
    granted_by: str  # id of a principal


def insert(tx: Tx, one: StoredAccount) -> None:
    """Store a new account."""
    tx.conn.execute(accounts.insert(), columns_of(one))


def find(tx: Tx, id: str) -> StoredAccount | None:
    """One account."""
    found = read(tx, StoredAccount, select(accounts).where(accounts.c.id == id))
    return found[0] if found else None


def of_identity(tx: Tx, identity: str) -> StoredAccount | None:
    """The account that a user of the identity provider logs in as; a write transaction locks its row."""
    query = select(accounts).where(accounts.c.identity == identity)
    found = read(tx, StoredAccount, query if tx.read_only else query.with_for_update())
    return found[0] if found else None


def insert_once(tx: Tx, one: StoredAccount) -> bool:
    """Store a new account unless its id or its identity is taken; returns whether it was stored."""
    statement = text(
        "INSERT INTO accounts (id, created_at, created_by, identity)"
        " VALUES (:id, :created_at, :created_by, :identity) ON CONFLICT DO NOTHING"
    )
    return bool(tx.conn.execute(statement, columns_of(one)).rowcount)


def set_identity(tx: Tx, id: str, identity: str) -> None:
    """Let a user of the identity provider log in as an account."""
    tx.conn.execute(accounts.update().where(accounts.c.id == id).values(identity=identity))


def set_disabled(tx: Tx, id: str, disabled_at: int | None) -> None:
    """Say since when an account may not log in, in microseconds UTC; None: it may."""
    tx.conn.execute(accounts.update().where(accounts.c.id == id).values(disabled_at=disabled_at))


def every(tx: Tx) -> list[StoredAccount]:
    """All accounts, by id."""
    return read(tx, StoredAccount, select(accounts).order_by(accounts.c.id))


def remove(tx: Tx, id: str) -> None:
    """Delete an account, its roles and its places in groups."""
    tx.conn.execute(accounts.delete().where(accounts.c.id == id))
    tx.conn.execute(group_members.delete().where(group_members.c.member == id))
    tx.conn.execute(role_grants.delete().where(role_grants.c.subject == id))


def set_members(tx: Tx, group: str, members: Sequence[str]) -> None:
    """Replace the members of a group."""
    tx.conn.execute(group_members.delete().where(group_members.c.group_id == group))
    if members:
        rows = [{"group_id": group, "member": one} for one in members]
        tx.conn.execute(group_members.insert(), rows)


def set_login_groups(tx: Tx, member: str, wanted: Sequence[str]) -> None:
    """Put an account into groups of its identity provider and no others of it.

    Groups that an admin has put it into stay.
    """
    here = group_members.c
    tx.conn.execute(group_members.delete().where(here.member == member, here.from_login.is_(True)))
    kept = set(tx.conn.execute(select(here.group_id).where(here.member == member)).scalars())
    rows = [{"group_id": one, "member": member, "from_login": True} for one in wanted]
    fresh = [row for row in rows if row["group_id"] not in kept]
    if fresh:
        tx.conn.execute(group_members.insert(), fresh)


def groups_of(tx: Tx, member: str) -> list[str]:
    """The groups of an account."""
    here = group_members.c
    query = select(here.group_id).where(here.member == member).order_by(here.group_id)
    return list(tx.conn.execute(query).scalars())


def groups(tx: Tx) -> dict[str, list[str]]:
    """All groups with their members, in order."""
    found: dict[str, list[str]] = {}
    query = select(group_members).order_by(group_members.c.group_id, group_members.c.member)
    for row in tx.conn.execute(query):
        found.setdefault(row.group_id, []).append(row.member)
    return found


def put_grant(tx: Tx, one: RoleGrant) -> None:
    """Store a role, in place of the one that the subject has there."""
    remove_grant(tx, one.subject, one.project)
    tx.conn.execute(role_grants.insert(), columns_of(one))


def remove_grant(tx: Tx, subject: str, project: str) -> bool:
    """Delete a role; returns whether it was there."""
    here = role_grants.c
    statement = role_grants.delete().where(here.subject == subject, here.project == project)
    return bool(tx.conn.execute(statement).rowcount)


def role_in(tx: Tx, subject: str, project: str) -> str | None:
    """The role that a subject was given in a place itself, not by a group."""
    here = role_grants.c
    query = select(here.role).where(here.subject == subject, here.project == project)
    return tx.conn.execute(query).scalar_one_or_none()


def grants(tx: Tx, projects: Sequence[str] | None = None) -> list[RoleGrant]:
    """All roles by place and subject; of some places where they are given."""
    here = role_grants.c
    query = select(role_grants).order_by(here.project, here.subject)
    if projects is not None:
        query = query.where(here.project.in_(projects))
    return read(tx, RoleGrant, query)


def roles_of(tx: Tx, id: str) -> dict[str, UserRole]:
    """The highest role of an account in each place, those of its groups among them.

    A role of a later release counts for nothing.
    """
    theirs = select(group_members.c.group_id).where(group_members.c.member == id)
    query = select(role_grants.c.project, role_grants.c.role).where(
        or_(role_grants.c.subject == id, role_grants.c.subject.in_(theirs))
    )
    found: dict[str, UserRole] = {}
    for project, name in tx.conn.execute(query):
        if name in {one.value for one in UserRole}:
            role = UserRole(name)
            old = found.get(project, role)
            found[project] = max(old, role, key=_ORDER.index)
    return found


def is_known(tx: Tx, subject: str) -> bool:
    """Whether there is an account or a group with this id."""
    there = union(
        select(accounts.c.id).where(accounts.c.id == subject),
        select(group_members.c.group_id).where(group_members.c.group_id == subject),
    )
    return tx.conn.execute(there).first() is not None
