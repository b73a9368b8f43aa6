"""Tokens with scopes, and the sessions of browsers that are derived from them.

Values are random and shown once; the database has their SHA-256. The token of the home is a file, not a
row: its id is `admin`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from dataclasses import replace

from phalanx.core.contract.access import Scope, covers, known_scopes
from phalanx.core.tenancy.principals import HOME_CALLER, HOME_USER, Caller, Principal
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import NotFound, Unauthenticated
from phalanx.kit.text import random_hex
from phalanx.launch.files import write_file
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.credentials import CreateTokenRequest, TokenCreated, TokenView
from phalanx.schemas.home import ServerFile
from phalanx.services.platform import Platform, token_hash
from phalanx.store import credentials
from phalanx.store.credentials import SESSION, TICKET, TOKEN, Credential
from phalanx.store.database import Tx
from phalanx.store.tenancy import accounts, audit

ADMIN = "admin"
SESSION_S = 12 * 3600
"""A session ends so long after its start, however it is used."""
IDLE_S = 30 * 60
"""A session ends so long after its last use."""
LINK_S = 15 * 60
"""A link that was not used ends after this time."""
_US = 1_000_000
_TOUCH_S = 60  # the use of a session is stored so often
_PREFIX = "phx"


def is_token(shown: str) -> bool:
    """Whether a text can be the value of a stored token."""
    return shown.startswith(f"{_PREFIX}_") and len(shown) < 100


def caller_of(platform: Platform, value: str, kind: str, now: int) -> Caller | None:
    """The caller with a stored token or session; None for unknown and expired ones."""
    found = platform.store.view(lambda tx: credentials.find(tx, token_hash(value), kind, now))
    if found is None:
        return None
    if kind == SESSION:
        _prolong(platform, found, now)
    principal = principal_of(platform, found.principal)
    if principal is None:
        return None
    return Caller(
        found.parent or found.id, known_scopes(found.scopes), principal, is_session=kind == SESSION
    )


def principal_of(platform: Platform, id: str | None) -> Principal | None:
    """A principal with its roles, those of its groups among them; `id` None: the user of the home.

    None for an account that is disabled or was removed.
    """
    if id in (None, HOME_USER.id):
        return HOME_USER

    def work(tx: Tx) -> Principal | None:
        found = accounts.find(tx, str(id))
        if found is None or found.disabled_at is not None:
            return None
        return Principal(found.id, accounts.roles_of(tx, found.id))

    return platform.store.view(work)


def _prolong(platform: Platform, session: Credential, now: int) -> None:
    """Let a session that is used go on, until the time that every session ends."""
    until = min(now + IDLE_S * _US, session.created_at + SESSION_S * _US)
    if session.expires_at is None or abs(until - session.expires_at) >= _TOUCH_S * _US:
        platform.store.transact(lambda tx: credentials.set_end(tx, session.id, until))


def create_token(
    platform: Platform, request: CreateTokenRequest, now: int, by: Caller
) -> TokenCreated:
    """Create a token. Its value is in the answer and nowhere else.

    Only an admin of the platform makes one for another account. Raises PermissionDenied, NotFound.
    """
    expires_at = None if request.expires_s is None else now + round(request.expires_s * _US)
    of = request.principal or by.principal.id
    if of != by.principal.id:
        by.require(Permission.PLATFORM_CHANGE, None)
        if of != HOME_USER.id and platform.store.view(lambda tx: accounts.find(tx, of)) is None:
            raise NotFound(f"there is no account {of}", "`phalanx users add` makes one")
    scopes = tuple(sorted(set(request.scopes)))
    one = Credential(
        random_hex(8), TOKEN, request.name, scopes, "", now, expires_at, principal=_stored(of)
    )
    return _store(platform, one)


def _stored(principal: str) -> str | None:
    return None if principal == HOME_USER.id else principal


def _store(platform: Platform, new: Credential) -> TokenCreated:
    return platform.store.transact(lambda tx: _put(tx, new))


def _put(tx: Tx, new: Credential) -> TokenCreated:
    value = f"{_PREFIX}_{new.id}_{random_hex(40)}"
    one = replace(new, hash=token_hash(value))
    old = credentials.token(tx, one.id, one.created_at)
    audit.describe(tx, f"token {one.id}", _audited(old), _audited(one))
    credentials.remove(tx, one.id)  # of a rotated token, with its sessions
    credentials.insert(tx, one)
    return TokenCreated(token=value, view=_view(one))


def new_token(tx: Tx, account: str, name: str, now: int, expires_at: int) -> TokenCreated:
    """A token that may do all that the roles of an account permit, until it expires."""
    scopes = (Scope.ADMIN,)
    return _put(
        tx, Credential(random_hex(8), TOKEN, name, scopes, "", now, expires_at, None, account)
    )


def list_tokens(platform: Platform, now: int, by: Caller) -> list[TokenView]:
    """The caller's tokens that have not expired, without values; those of all for an admin."""
    found = platform.store.view(lambda tx: credentials.tokens(tx, now))
    return [_view(one) for one in found if _may_change(by, one)]


def token_view(platform: Platform, id: str, now: int) -> TokenView | None:
    """A token without its value; None for that of the home."""
    found = platform.store.view(lambda tx: credentials.token(tx, id, now))
    return None if found is None else _view(found)


def _may_change(by: Caller, one: Credential) -> bool:
    is_own = (one.principal or HOME_USER.id) == by.principal.id
    return is_own or by.may(Permission.PLATFORM_CHANGE, None)


def revoke_token(platform: Platform, id: str, now: int, by: Caller) -> None:
    """Delete a token and its sessions. Raises NotFound."""
    _known(platform, id, now, by)

    def work(tx: Tx) -> None:
        audit.describe(tx, f"token {id}", _audited(credentials.token(tx, id, now)), None)
        credentials.remove(tx, id)

    platform.store.transact(work)


def _audited(one: Credential | None) -> dict[str, object] | None:
    """What the audit log shows of a token: never its value or its hash."""
    if one is None:
        return None
    return {
        "name": one.name,
        "scopes": list(one.scopes),
        "principal": one.principal or HOME_USER.id,
        "created_at": one.created_at,
        "expires_at": one.expires_at,
    }


def rotate_token(platform: Platform, id: str, now: int, by: Caller) -> TokenCreated:
    """Give a token a new value, for as long as it was created for; the old one ends at once.

    Raises NotFound.
    """
    old = _known(platform, id, now, by)
    expires_at = None if old.expires_at is None else now + old.expires_at - old.created_at
    return _store(platform, replace(old, created_at=now, expires_at=expires_at))


def _known(platform: Platform, id: str, now: int, by: Caller) -> Credential:
    found = platform.store.view(lambda tx: credentials.token(tx, id, now))
    if found is None or not _may_change(by, found):
        raise NotFound(f"there is no token {id}", "`phalanx token list` lists them")
    return found


def rotate_admin(platform: Platform, now: int) -> TokenCreated:
    """Give the home a new token; the old one, its sessions and its links end at once. Raises OSError.

    Supervisors and other tokens go on.
    """
    value = random_hex(48)

    def work(tx: Tx) -> None:
        audit.describe(tx, "the token of the home", "the old one", "a new one")
        credentials.remove(tx, ADMIN)

    platform.store.transact(work)
    home = platform.home
    write_file(home.token_file, f"{value}\n".encode())
    with contextlib.suppress(FileNotFoundError):
        served = ServerFile.model_validate_json(home.server_file.read_bytes())
        changed = served.model_copy(update={"token": value})
        write_file(home.server_file, changed.model_dump_json().encode())
    view = Credential(ADMIN, TOKEN, "the home", (Scope.ADMIN,), "", now, None)
    return TokenCreated(token=value, view=_view(view))


def open_session(platform: Platform, caller: Caller, now: int) -> str:
    """A session of the web UI, which goes on while it is used, for some hours; returns its value.

    It may submit and change jobs where its caller may, and do nothing that needs the scope `admin`.
    """
    return platform.store.transact(lambda tx: new_session(tx, caller, now))


def new_session(tx: Tx, caller: Caller, now: int) -> str:
    """The same, in a transaction."""
    value = random_hex(48)
    one = Credential(
        id=random_hex(16),
        kind=SESSION,
        name="",
        scopes=(Scope.SUBMIT,) if covers(caller.scopes, Scope.SUBMIT) else (Scope.READ,),
        hash=token_hash(value),
        created_at=now,
        expires_at=now + IDLE_S * _US,
        parent=caller.token or None,
        principal=_stored(caller.principal.id),
    )
    audit.describe(
        tx, f"session of {caller.principal.id}", None, {"opened by": caller.token or "login"}
    )
    credentials.drop_expired(tx, now)
    credentials.insert(tx, one)
    return value


def end_sessions(platform: Platform) -> int:
    """End the sessions of all browsers; returns their number."""

    def work(tx: Tx) -> int:
        count = credentials.remove_sessions(tx)
        audit.describe(tx, "sessions of browsers", count, 0)
        return count

    return platform.store.transact(work)


def close_session(platform: Platform, value: str, now: int) -> None:
    """End a session."""

    def work(tx: Tx) -> None:
        found = credentials.find(tx, token_hash(value), SESSION, now)
        if found is not None:
            owner = found.principal or HOME_USER.id
            audit.describe(tx, f"session of {owner}", {"opened by": found.parent or "login"}, None)
            credentials.remove(tx, found.id)

    platform.store.transact(work)


def login_ticket(admin_token: str, now: int) -> str:
    """A text that opens one session of the pages before it expires. It opens nothing else."""
    said = f"{now // _US + LINK_S}.{random_hex(32)}"
    return f"{said}.{_signed(admin_token, f'login:{said}')}"


def new_link(platform: Platform, admin_token: str, now: int) -> str:
    """The ticket of a new login link, of which the audit log has a row."""
    expires_at = at_of(now + LINK_S * _US).isoformat()
    platform.store.transact(
        lambda tx: audit.describe(tx, "login link", None, {"expires_at": expires_at})
    )
    return login_ticket(admin_token, now)


def open_with_ticket(platform: Platform, admin_token: str, ticket: str, now: int) -> str:
    """A session for a login ticket, which opens no other one; returns its value.

    Raises Unauthenticated.
    """
    said, _, signature = ticket.rpartition(".")
    right = _signed(admin_token, f"login:{said}")
    expires_at = 0
    if hmac.compare_digest(signature.encode(), right.encode()):
        expires_at = int(said.partition(".")[0]) * _US
    used = Credential(random_hex(16), TICKET, "", (), token_hash(said), now, expires_at, ADMIN)

    def work(tx: Tx) -> str | None:
        if expires_at <= now or not credentials.insert_once(tx, used):
            return None
        return new_session(tx, HOME_CALLER, now)

    session = platform.store.transact(work)
    if session is None:
        raise Unauthenticated(
            "the link is wrong, was used, or has expired", "`phalanx token login` prints a new one"
        )
    return session


def form_value(session: str) -> str:
    """The value that a form has to send back beside the cookie: other sites cannot read it."""
    return _signed(session, "form")


def _signed(key: str, text: str) -> str:
    return hmac.new(key.encode(), f"phalanx {text}".encode(), hashlib.sha256).hexdigest()


def _view(one: Credential) -> TokenView:
    return TokenView.of_token(one, known_scopes(one.scopes), one.principal or HOME_USER.id)
