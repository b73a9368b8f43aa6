"""Where the files of a job are, and the environment in which the control plane deletes its copies.

The credentials are those that the ranks of the job got, as far as they are stored: variables of the job,
and secrets of its project. If those of a job are stored nowhere, its copies are deleted with those of the
control plane, and only at the address that these are for: no job has the control plane send them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from phalanx.checkpoint.removal.far import ROLES, VARIABLES
from phalanx.core.codec import decode, encode
from phalanx.errors import CheckpointUnavailable, PermissionDenied, PlatformError
from phalanx.kit.text import job_label
from phalanx.services.lifecycle.assignments import contract_of, environment
from phalanx.services.platform import Platform
from phalanx.services.secrets.values import values
from phalanx.store.jobs import StoredJob

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CREDENTIALS = ("KEY", "TOKEN", "SECRET", "CREDENTIALS", "SAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlaces:
    """Where the data of a job is. It is stored with a deleted job until everything is deleted."""

    uid: str = ""  # unique id of the job; empty: of a job of an early release
    code: str | None = None  # digest of its code archive
    roles: tuple[str, ...] = ()  # roles with checkpoints of their own
    stores: tuple[str, ...] = ()  # prefixes of its copies, one for each role that has any
    #: plain variables of the ranks that configure the client of a store
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # secrets of the project that the client of a store may need
    withheld: tuple[str, ...] = ()  # variables for it without a stored value

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal value back."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> JobPlaces:
        """Read back what `to_json` wrote."""
        return decode(cls, body)


def places_of(platform: Platform, stored: StoredJob) -> JobPlaces:
    """Where the data of a job is. Without a readable contract, only its folders are known."""
    facts = stored.facts
    try:
        contract = contract_of(facts)
    except PlatformError:
        return JobPlaces(code=facts.code_digest)
    label = job_label(stored.job.num)
    roles: list[str] = []
    stores: list[str] = []
    env: dict[str, str] = {}
    withheld: set[str] = set()
    for role in contract.roles:
        if not role.leads:
            roles.append(role.name)
        if role.checkpoint.store is None:
            continue
        below = "" if role.leads else f"/{ROLES}/{role.name}"
        store = f"{role.checkpoint.store}/{facts.project}/{label}{below}"
        if store not in stores:
            stores.append(store)
        plain, own = environment(platform, facts, contract, role)
        env |= {name: one for name, one in plain.items() if name.startswith(VARIABLES)}
        withheld |= {name for name in own if name.startswith(VARIABLES)}
    named = [one for one in contract.secrets if one.startswith(VARIABLES)] if stores else []
    return JobPlaces(
        uid=contract.uid,
        code=facts.code_digest,
        roles=tuple(roles),
        stores=tuple(stores),
        env=env,
        secrets=tuple(named),
        withheld=tuple(sorted(withheld)),
    )


def folder_of(url: str) -> Path | None:
    """The folder of a store that is one, `file:///…`; None for any other store."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def check_store(platform: Platform, url: str) -> None:
    """Raise PermissionDenied where the settings do not let the control plane delete in a store."""
    prefixes = platform.retention.stores
    if prefixes is not None and not any(_is_below(url, one) for one in prefixes):
        raise PermissionDenied(
            f"{url} is not among the stores that the control plane may delete in",
            "PHALANX__RETENTION__STORES lists them",
        )


def store_env(platform: Platform, project: str, url: str, places: JobPlaces) -> dict[str, str]:
    """The variables with which the copies of a job are deleted.

    Raises CheckpointUnavailable where no credentials for the store are known, and what reading a secret
    raises.
    """
    env = dict(places.env)
    found = env | values(platform, project, places.secrets)
    is_known = any(part in name for name in found for part in _CREDENTIALS)
    if is_known and not places.withheld:
        return found
    mine = dict(platform.retention.store_env)
    if _endpoint(env) != _endpoint(mine):
        raise CheckpointUnavailable(
            f"no credentials are known for {url}: those of the job are not stored",
            "start the control plane with them in its environment, or name secrets in the spec",
        )
    return mine


def _is_below(url: str, prefix: str) -> bool:
    whole = prefix.rstrip("/")
    return url == whole or url.startswith(f"{whole}/")


def _endpoint(env: Mapping[str, str]) -> str:
    return next((env[name] for name in _ENDPOINTS if env.get(name)), "")
