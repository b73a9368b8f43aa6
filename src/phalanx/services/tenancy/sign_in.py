"""The account of a user that the identity provider has authenticated: made, found or refused."""

from __future__ import annotations

from phalanx.core.tenancy.identities import Identity
from phalanx.errors import PermissionDenied
from phalanx.store.database import Tx
from phalanx.store.tenancy import accounts, audit
from phalanx.store.tenancy.accounts import LOGIN, StoredAccount

_ADMIN = "ask an admin of the platform"


def signed_in(tx: Tx, identity: Identity, now: int) -> str:
    """The id of the user's account, in the groups that the provider names.

    The first login makes it, without any role but those of its groups. Raises PermissionDenied for a
    disabled account, and for a name that another user has.
    """
    found = accounts.of_identity(tx, identity.key) or _first_login(tx, identity, now)
    if found.disabled_at is not None:
        raise PermissionDenied(f"the account {found.id} is disabled", _ADMIN)
    if identity.groups is not None:
        before = accounts.groups_of(tx, found.id)
        accounts.set_login_groups(tx, found.id, identity.groups)
        after = accounts.groups_of(tx, found.id)
        if before != after:
            audit.describe(tx, f"groups of {found.id}", before, after)
    return found.id


def _first_login(tx: Tx, identity: Identity, now: int) -> StoredAccount:
    named = accounts.find(tx, identity.account)
    if named is None:
        made = StoredAccount(identity.account, now, LOGIN, identity.key)
        if accounts.insert_once(tx, made):
            audit.describe(tx, made.id, None, {"created_by": LOGIN, "identity": made.identity})
            return made
        # The same user's other login, at the same time, has made it.
        named = accounts.of_identity(tx, identity.key)
    elif named.identity is None and identity.is_named_by_subject:
        accounts.set_identity(tx, named.id, identity.key)
        audit.describe(tx, f"identity of {named.id}", None, identity.key)
        return named
    if named is None or named.identity != identity.key:
        raise PermissionDenied(
            f"the account {identity.account} belongs to another user",
            f"{_ADMIN}: `phalanx users link {identity.account} SUBJECT` says which one logs in as it",
        )
    return named
