"""Which scope each route needs. A route that is not listed needs `admin`."""

from __future__ import annotations

import re

from phalanx.core.contract.access import Scope

RULES: dict[tuple[str, str], Scope] = {
    ("GET", "/metrics"): Scope.METRICS,
    ("GET", "/"): Scope.READ,
    ("GET", "/jobs/{num}"): Scope.READ,
    ("POST", "/logout"): Scope.READ,
    ("GET", "/api/v1/info"): Scope.READ,
    ("POST", "/api/v1/clients/hello"): Scope.READ,
    ("GET", "/api/v1/jobs"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/events"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/checkpoints"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/stacks"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/profiles"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/why"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/logs"): Scope.READ,
    ("GET", "/api/v1/jobs/{num}/metrics"): Scope.READ,
    ("GET", "/api/v1/pools"): Scope.READ,
    ("GET", "/api/v1/pools/{name}"): Scope.READ,
    ("GET", "/api/v1/nodes"): Scope.READ,
    ("GET", "/api/v1/nodes/{name}"): Scope.READ,
    ("GET", "/api/v1/projects"): Scope.READ,
    ("GET", "/api/v1/projects/{name}"): Scope.READ,
    ("GET", "/api/v1/scheduler/policy"): Scope.READ,
    ("GET", "/api/v1/studies"): Scope.READ,
    ("GET", "/api/v1/studies/{num}"): Scope.READ,
    ("GET", "/api/v1/studies/{num}/trials"): Scope.READ,
    ("GET", "/api/v1/studies/{num}/events"): Scope.READ,
    ("GET", "/api/v1/studies/{num}/results"): Scope.READ,
    ("POST", "/api/v1/studies"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/check"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/pause"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/resume"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/stop"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/extend"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/trials"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/ask"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/trials/{trial}/report"): Scope.SUBMIT,
    ("POST", "/api/v1/studies/{num}/trials/{trial}/tell"): Scope.SUBMIT,
    ("POST", "/api/v1/jobs"): Scope.SUBMIT,
    ("POST", "/api/v1/jobs/{num}/stacks"): Scope.SUBMIT,
    ("POST", "/api/v1/jobs/{num}/profiles"): Scope.SUBMIT,
    ("PATCH", "/api/v1/jobs/{num}"): Scope.SUBMIT,
    ("POST", "/api/v1/jobs/{num}/stop"): Scope.SUBMIT,
    ("POST", "/api/v1/jobs/{num}/resume"): Scope.SUBMIT,
    ("HEAD", "/api/v1/code/{digest}"): Scope.SUBMIT,
    ("PUT", "/api/v1/code/{digest}"): Scope.SUBMIT,
}
# The only routes that a browser's session opens; it changes nothing but itself.
PAGES = frozenset({("GET", "/"), ("GET", "/jobs/{num}"), ("POST", "/logout")})
_FIELD = re.compile(r"\{\w+\}")


def _compiled(template: str) -> re.Pattern[str]:
    literal = [re.escape(part) for part in _FIELD.split(template)]
    return re.compile("[^/]+".join(literal))


_PATTERNS = [(key, _compiled(key[1])) for key in sorted({*RULES, *PAGES})]


def rule_of(method: str, path: str) -> tuple[str, str] | None:
    """The rule of a request; None for a route that is not listed."""
    for key, pattern in _PATTERNS:
        if key[0] == method and pattern.fullmatch(path):
            return key
    return None


def needed_scope(method: str, path: str) -> Scope:
    """The scope that a request needs."""
    key = rule_of(method, path)
    return Scope.ADMIN if key is None else RULES.get(key, Scope.ADMIN)


def opens_for_session(method: str, path: str) -> bool:
    """Whether the session of a browser is enough for a request."""
    return rule_of(method, path) in PAGES
