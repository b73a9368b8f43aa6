"""The checks of `phalanx doctor --server`: the answers of a running control plane, judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from phalanx import __version__
from phalanx.cli.client.checkup import CheckResult
from phalanx.errors import PermissionDenied, PlatformError
from phalanx.kit.clock import SystemClock
from phalanx.schemas.api.accounts import WhoAmIView
from phalanx.schemas.api.body import InfoView, ReadinessView, at_of
from phalanx.schemas.api.pools import PoolView
from phalanx.sdk import PhalanxClient

T = TypeVar("T")
_SLOW_S = 1.0
_MAX_OFFSET_S = 2.0
_TOKEN_SOON = timedelta(days=7)
_CERTIFICATE_SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a control plane has answered, or the error that it has answered."""

    url: str
    answer_s: float
    certificate_ends_at: datetime | None  # None: no TLS
    now: datetime  # of this machine, while `info` was answered
    ready: ReadinessView
    me: WhoAmIView | PlatformError
    info: InfoView | PlatformError
    pools: list[PoolView] | PlatformError


def examine_server(client: PhalanxClient) -> list[CheckResult]:
    """Ask a control plane and judge its answers. One that does not answer is one failed check."""
    try:
        facts = _ask(client)
    except PlatformError as error:
        return [CheckResult("FAIL", "reachable", error.message, error.hint or "")]
    return judge(facts)


def _ask(client: PhalanxClient) -> ServerFacts:
    answer_s, ends_at = client.measure()
    ready = client.readiness()  # needs neither a token nor the database
    me = _answer(client.accounts.who_am_i)
    clock = SystemClock()
    before = clock.now()
    info = _answer(client.info)
    middle = at_of((before + clock.now()) // 2)
    pools = _answer(client.pools)
    return ServerFacts(client.url, answer_s, ends_at, middle, ready, me, info, pools)


def _answer(call: Callable[[], T]) -> T | PlatformError:
    try:
        return call()
    except PlatformError as error:
        return error


def judge(facts: ServerFacts) -> list[CheckResult]:
    """A result for each check, the most important first."""
    slow = facts.answer_s > _SLOW_S
    said = f"{facts.url} answers in {facts.answer_s * 1000:.0f} ms"
    results = [
        CheckResult(
            "warn" if slow else "ok", "reachable", said, "look at its load" if slow else ""
        ),
        *_parts(facts),
        _certificate(facts),
        _token(facts),
    ]
    if isinstance(facts.info, PlatformError):
        results.append(_unseen("control plane", facts.info))
    else:
        results += [_version(facts.info), _replicas(facts.info), _clock(facts.info, facts.now)]
        if facts.info.trouble:
            remedy = "free space on its disk, or make its home writable"
            results.append(CheckResult("FAIL", "storage", facts.info.trouble, remedy))
    if isinstance(facts.pools, PlatformError):
        results.append(_unseen("pools", facts.pools))
    else:
        results += _pools(facts.pools)
    return results


def _unseen(subject: str, error: PlatformError) -> CheckResult:
    if isinstance(error, PermissionDenied):
        return CheckResult("warn", subject, "this account may not see it", "ask as an admin")
    return CheckResult("FAIL", subject, error.message, error.hint or "")


def _parts(facts: ServerFacts) -> list[CheckResult]:
    remedies = {
        "database": "docs/how-to/postgresql.md lists causes",
        "loops": "its log says why; restart it",
    }
    found = [
        CheckResult("ok", name, "works")
        if said == "ok"
        else CheckResult("FAIL", name, said, remedies.get(name, ""))
        for name, said in facts.ready.checks.items()
    ]
    if facts.ready.role == "leader":
        return [*found, CheckResult("ok", "leader", "this control plane leads")]
    if facts.ready.leader is None:
        return [
            *found,
            CheckResult("FAIL", "leader", "no replica leads: no job starts", "see its log"),
        ]
    return [*found, CheckResult("ok", "leader", f"{facts.ready.leader} leads")]


def _certificate(facts: ServerFacts) -> CheckResult:
    ends_at = facts.certificate_ends_at
    if ends_at is None:
        local = facts.url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        if local:
            return CheckResult("ok", "certificate", "none, on an address of this machine")
        return CheckResult(
            "warn", "certificate", "the token is sent without TLS", "see docs/how-to/tls.md"
        )
    soon = ends_at - facts.now < _CERTIFICATE_SOON
    said = f"valid until {ends_at:%Y-%m-%d}"
    return CheckResult("warn" if soon else "ok", "certificate", said, "renew it" if soon else "")


def _token(facts: ServerFacts) -> CheckResult:
    if isinstance(facts.me, PlatformError):
        return CheckResult("FAIL", "token", facts.me.message, facts.me.hint or "")
    said = f"{facts.me.id} with {', '.join(facts.me.scopes) or 'no scope'}"
    ends_at = None if facts.me.credential is None else facts.me.credential.expires_at
    if ends_at is None:
        return CheckResult("ok", "token", said)
    # On the server's clock, which judges the token.
    now = facts.now if isinstance(facts.info, PlatformError) else facts.info.now
    soon = ends_at - now < _TOKEN_SOON
    remedy = "`phalanx token create` makes a new one" if soon else ""
    return CheckResult(
        "warn" if soon else "ok", "token", f"{said}, until {ends_at:%Y-%m-%d}", remedy
    )


def _version(info: InfoView) -> CheckResult:
    if info.version == __version__:
        return CheckResult("ok", "version", info.version)
    said = f"{info.version}, and this command is {__version__}"
    return CheckResult("warn", "version", said, "install the same release on both")


def _replicas(info: InfoView) -> CheckResult:
    versions = sorted({one.version for one in info.replicas})
    if len(versions) > 1:
        said = f"{len(info.replicas)} of the releases {', '.join(versions)}"
        return CheckResult("warn", "replicas", said, "finish the upgrade")
    return CheckResult("ok", "replicas", str(max(1, len(info.replicas))))


def _clock(info: InfoView, now: datetime) -> CheckResult:
    offset_s = (info.now - now).total_seconds() - info.clock_ahead_s
    said = f"{offset_s:+.1f} s from this machine"
    if abs(offset_s) <= _MAX_OFFSET_S:
        return CheckResult("ok", "clock", said)
    return CheckResult("warn", "clock", said, "let both follow a time server (NTP)")


def _pools(pools: list[PoolView]) -> list[CheckResult]:
    found = []
    for one in pools:
        name = f"pool {one.name}"
        said = f"{one.num_free} of {one.num_slots} slots free, {one.num_waiting} jobs wait"
        if not one.num_nodes:
            remedy = "`phalanx pools show` says why; is its cluster reachable?"
            found.append(CheckResult("FAIL", name, "it has no nodes", remedy))
        elif one.num_closed == one.num_nodes:
            remedy = "`phalanx nodes` says why"
            found.append(CheckResult("warn", name, "no job may start on any of its nodes", remedy))
        else:
            found.append(CheckResult("ok", name, said))
    return found or [
        CheckResult("FAIL", "pools", "there are none", "`phalanx pools apply` adds one")
    ]
