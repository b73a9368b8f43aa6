"""What the job kinds of the training operator share: the run policy, replicas and restarts of roles."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.kubernetes.pods import POD_TEMPLATE
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, dropped, mapped, refused, under

_MOST = 100_000
RUN_POLICY: tuple[KeyRule, ...] = (
    *mapped("recovery.rank_crash.count", "spec.runPolicy.backoffLimit"),
    *mapped("max_duration", "spec.runPolicy.activeDeadlineSeconds"),
    *dropped("processes of an ended job never stay", "spec.runPolicy.cleanPodPolicy"),
    *dropped("retention is that of the home", "spec.runPolicy.ttlSecondsAfterFinished"),
    *dropped("the job is run by Phalanx", "spec.runPolicy.managedBy"),
    *dropped(
        "a gang always starts as a whole",
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "spec.runPolicy.schedulingPolicy.minResources",
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
    ),
    *dropped(
        "write `project:` and `priority:` of Phalanx",
        "spec.runPolicy.schedulingPolicy.queue",
        "spec.runPolicy.schedulingPolicy.priorityClass",
    ),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.runPolicy.suspend"),
)
"""Rules of `spec.runPolicy`."""


def replica_rules(key: str) -> tuple[KeyRule, ...]:
    """Rules of the roles under a key of the spec, such as `tfReplicaSpecs`."""
    return (
        *mapped("resources.nodes", f"spec.{key}.*.replicas"),
        *mapped("recovery", f"spec.{key}.*.restartPolicy"),
        *under(f"spec.{key}.*.template", POD_TEMPLATE),
    )


def read_roles(
    body: ForeignReader, key: str, known: dict[str, str]
) -> list[tuple[str, ForeignReader]]:
    """The roles under a key by their names in lower case, in the order of `known`.

    `known` has a reason for each role that is refused, and an empty text for the others. Names that are
    not in it are refused.
    """
    found: dict[str, ForeignReader] = {}
    roles = body.at(key)
    for kind in roles.mapping_keys():
        role, name = roles.at(kind), kind.lower()
        if name not in known:
            able = ", ".join(one.capitalize() for one, why in known.items() if not why)
            role.log.refuse(role.line, role.shown, f"must be {able}")
        elif known[name]:
            role.log.refuse(role.line, role.shown, known[name])
        else:
            found[name] = role
    return [(name, found[name]) for name in known if name in found]


def read_replicas(role: ForeignReader, only: int | None = None) -> int:
    """The number of pods of a role; with `only`, it has to be that number."""
    count = role.whole("replicas", 0, _MOST)
    count = 1 if count is None else count
    if only is not None and count != only:
        role.refuse("replicas", f"must be {only} for this role", count)
    return count


def run_policy(body: ForeignReader, role: ForeignReader) -> dict[str, Any]:
    """The keys `recovery` and `max_duration` from a job and the role that decides about restarts."""
    run = body.at("runPolicy")
    count = run.whole("backoffLimit", 0, 10**9)
    own = body.at("elasticPolicy").whole("maxRestarts", 0, 10**9)
    count = own if count is None else count
    recovery: dict[str, Any] = {} if count is None else {"rank_crash": {"count": count}}
    policy = role.text("restartPolicy")
    if policy == "Never":
        recovery = {"rank_crash": {"count": 0}, "user_error": {"count": 0}}
    elif policy == "ExitCode":
        codes = {code: "fail" if code < 128 else "retry" for code in range(1, 256)}
        recovery["exit_codes"] = codes
    elif policy not in (None, "OnFailure", "Always"):
        role.refuse("restartPolicy", "must be Always, OnFailure, ExitCode or Never", policy)
    found: dict[str, Any] = {"recovery": recovery} if recovery else {}
    limit = run.whole("activeDeadlineSeconds", 1, 10**9)
    if limit is not None:
        found["max_duration"] = f"{limit}s"
    return found
