"""Set, list, remove and read secrets, and wrap their keys anew. No answer and no message holds a value."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from phalanx.core.reasons import Cause
from phalanx.errors import (
    NotFound,
    PlatformError,
    SecretManagerUnavailable,
    SecretRefused,
    StoreError,
    TooLarge,
    UserError,
)
from phalanx.launch import secret_files
from phalanx.schemas.api.credentials import SecretView
from phalanx.services.platform import Platform
from phalanx.services.secret_managers.references import MAX_BYTES, SecretReference
from phalanx.store.database import Tx
from phalanx.store.secrets import rows
from phalanx.store.secrets.envelope import rewrapped, seal, unseal
from phalanx.store.secrets.rows import WHOLE, SecretRow
from phalanx.store.tenancy import audit

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MOST = 1000
"""Secrets that one project may have."""


def set_secret(
    platform: Platform, project: str, name: str, value: str, now: int, *, actor: str
) -> SecretView:
    """Store a secret, in the place of an earlier value or reference. Raises UserError, TooLarge."""
    _check_name(name)
    if not value or "\0" in value:
        raise UserError(f"secret {name}: the value is empty, or holds a zero byte")
    if len(value.encode()) > MAX_BYTES:
        raise TooLarge(f"secret {name}: the value is longer than {MAX_BYTES} bytes")

    def work(tx: Tx) -> SecretRow:
        version = _next_version(tx, project, name)
        sealed = seal(platform.secret_keys, value, project, name)
        key = sealed.key
        stored = SecretRow(project, name, version, key.key_id, key.data, sealed.data, now, actor)
        return _put(tx, stored)

    return _view(platform.store.transact(work))


def set_reference(
    platform: Platform, project: str, name: str, source: str, now: int, *, actor: str
) -> SecretView:
    """Store a reference to a value in a secret manager, which is read once, to see that it is there.

    Raises UserError for a text that is no reference, SecretRefused for one that the project may not use or
    the manager refuses, and SecretManagerUnavailable.
    """
    _check_name(name)
    reference = SecretReference.parse(source)
    platform.managers.read(project, {name: reference})

    def work(tx: Tx) -> SecretRow:
        version = _next_version(tx, project, name)
        row = SecretRow(project, name, version, "", b"", b"", now, actor, str(reference))
        return _put(tx, row)

    return _view(platform.store.transact(work))


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} cannot be the name of a variable", "use letters, digits and _")


def _next_version(tx: Tx, project: str, name: str) -> int:
    """The version of a new value; other changes wait until it is stored. Raises UserError."""
    rows.lock(tx)
    old = rows.find(tx, project, name)
    if old is None and len(rows.of_projects(tx, [project])) >= MOST:
        raise UserError(f"{_place(project)} has {MOST} secrets", "remove some that are not used")
    return 1 if old is None else old.version + 1


def _put(tx: Tx, row: SecretRow) -> SecretRow:
    """Store a row, with what changes in the audit log: never a value."""
    old = rows.find(tx, row.project, row.name)
    what = f"secret {row.name} of {_place(row.project)}"
    audit.describe(tx, what, _audited(old), _audited(row))
    rows.put(tx, row)
    return row


def list_secrets(platform: Platform, project: str) -> list[SecretView]:
    """The secrets that jobs of a project can name, without values; WHOLE: those of the whole platform."""
    found = platform.store.view(lambda tx: rows.of_projects(tx, {WHOLE, project}))
    own = {one.name for one in found if one.project == project}
    # One of the project hides that of the whole platform with its name.
    return [_view(one) for one in found if one.project == project or one.name not in own]


def show_secret(platform: Platform, project: str, name: str) -> SecretView:
    """A secret of this project alone, without its value; WHOLE: of the whole platform. Raises NotFound."""
    found = platform.store.view(lambda tx: rows.find(tx, project, name))
    if found is None:
        raise NotFound(f"{_place(project)} has no secret {name[:200]}", "phalanx secrets ls")
    return _view(found)


def remove_secret(platform: Platform, project: str, name: str) -> None:
    """Delete a secret. Raises NotFound."""

    def work(tx: Tx) -> None:
        old = rows.find(tx, project, name)
        if not rows.remove(tx, project, name):
            raise NotFound(f"{_place(project)} has no secret {name[:200]}", "phalanx secrets ls")
        audit.describe(tx, f"secret {name} of {_place(project)}", _audited(old), None)

    platform.store.transact(work)


def _audited(one: SecretRow | None) -> dict[str, object] | None:
    """What the audit log shows of a secret: never its value."""
    if one is None:
        return None
    shown: dict[str, object] = {"version": one.version, "set_by": one.set_by}
    return shown | {"source": one.source} if one.source else shown


def rotate_key(platform: Platform) -> int:
    """Wrap the data keys of all secrets with a new master key; returns their number. Raises StoreError."""
    keys = platform.secret_keys

    def work(tx: Tx) -> int:
        rows.lock(tx)
        found = [one for one in rows.every(tx) if not one.source]
        wrapped = set[str]()
        for one in found:
            key = rewrapped(keys, one.envelope, one.project, one.name).key
            rows.put(tx, replace(one, key_id=key.key_id, wrapped_key=key.data))
            wrapped.add(key.key_id)
        before = {"id": sorted({one.key_id for one in found}), "secrets": len(found)}
        audit.describe(tx, "master key", before, {"id": sorted(wrapped), "secrets": len(found)})
        return len(found)

    return keys.renew(lambda: platform.store.transact(work))


def missing(platform: Platform, project: str, names: Iterable[str]) -> list[str]:
    """Those of some names that jobs of a project cannot use."""
    wanted = list(names)
    found = _rows(platform, project, wanted)
    return [name for name in wanted if name not in found]


def values(platform: Platform, project: str, names: Iterable[str]) -> dict[str, str]:
    """Values by name, those of references from their managers.

    Raises NotFound, which names the first that is missing, StoreError, SecretRefused and
    SecretManagerUnavailable.
    """
    wanted = list(names)
    found = _rows(platform, project, wanted)
    for name in wanted:
        if name not in found:
            hint = f"phalanx secrets set {name} --project {project}"
            raise NotFound(f"secret {name} of project {project} does not exist any more", hint)
    keys = platform.secret_keys
    read = {
        name: unseal(keys, found[name].envelope, found[name].project, name)
        for name in wanted
        if not found[name].source
    }
    for owner in {WHOLE, project}:
        # One of the whole platform may name every path, one of a project its own.
        here = {name: one.source for name, one in found.items() if one.project == owner}
        references = {name: SecretReference.parse(one) for name, one in here.items() if one}
        read |= platform.managers.read(owner, references)
    return read


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why the secrets of a job cannot be read."""

    cause: Cause
    message: str  # with the remedy


def unreadable(platform: Platform, project: str, names: Iterable[str]) -> Unreadable | None:
    """Why the secrets of a job cannot be read; None where they can."""
    try:
        values(platform, project, names)
    except SecretManagerUnavailable as error:
        return Unreadable(Cause.SECRET_MANAGER_UNAVAILABLE, error.message)
    except (NotFound, StoreError, SecretRefused) as error:
        said = f"{error.message}: {error.hint}" if error.hint else error.message
        return Unreadable(Cause.SECRET_UNAVAILABLE, said)
    return None


def adopt_files(platform: Platform, now: int) -> int:
    """Move secrets that an earlier release kept as files into the database; returns their number.

    A value that is set since then wins. Repeated after a crash, nothing is lost.
    """
    count = 0
    root = platform.home.secret_files_dir
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        for name in secret_files.names(folder):
            try:
                if rows_missing(platform, folder.name, name):
                    value = secret_files.read(folder, [name])[name]
                    set_secret(platform, folder.name, name, value, now, actor="user:admin")
                (folder / name).unlink()
                count += 1
            except (PlatformError, OSError) as error:
                _LOG.error("secret %s of %s stays a file: %s", name, folder.name, error)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return count


def rows_missing(platform: Platform, project: str, name: str) -> bool:
    """Whether the database has no such secret of a project."""
    return platform.store.view(lambda tx: rows.find(tx, project, name)) is None


def _rows(platform: Platform, project: str, names: list[str]) -> dict[str, SecretRow]:
    """Rows by name; that of the project wins over that of the whole platform."""
    if not names:
        return {}
    found = platform.store.view(lambda tx: rows.of_projects(tx, {WHOLE, project}))
    ordered = sorted(found, key=lambda one: one.project == project)
    return {one.name: one for one in ordered if one.name in names}


def _place(project: str) -> str:
    return f"project {project}" if project != WHOLE else "the whole platform"


def _view(row: SecretRow) -> SecretView:
    return SecretView.of_secret(
        row.project, row.name, row.version, row.set_at, row.set_by, row.source
    )
