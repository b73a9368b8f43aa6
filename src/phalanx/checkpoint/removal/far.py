"""Delete checkpoints of a job in an object store, in a process of its own.

The client of a store runs threads and reads credentials from its environment: the control plane starts
this program with the variables of the job, and kills it when it takes too long. Request and answer are
one JSON document each.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx import errors
from phalanx.checkpoint.remote import manifest_of, remove
from phalanx.checkpoint.remote_store import ObjectInfo, ObjectStore, brief, open_store
from phalanx.checkpoint.removal.near import Removed
from phalanx.core.training.checkpoints import MANIFEST, is_checkpoint_name, is_of_job
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, NotFound, PlatformError

VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
"""How the names of the variables begin that configure the client of a store."""
ROLES = "roles"
"""The prefix below that of the job with those of its other roles, which have requests of their own."""
_MAX_ANSWER = 1 << 16


@dataclass(frozen=True, slots=True)
class FarRequest:
    """What to delete: everything of a job below `url`, or with `only` these checkpoints."""

    url: str  # prefix of the job, without credentials
    job_uid: str | None  # None: of any job
    known: Sequence[str]  # names of checkpoints that the job reported
    only: Sequence[str] | None = None


def remove_far(
    request: FarRequest, env: Mapping[str, str], base: Mapping[str, str], timeout_s: float
) -> Removed:
    """Delete in a child process with the environment `base`, and of `env` the variables of a store.

    Raises CheckpointUnavailable, also where it takes longer than `timeout_s`, and may then be repeated;
    PermissionDenied, NotSupported.
    """
    mine = {name: one for name, one in env.items() if name.startswith(VARIABLES)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps({"request": asdict(request), "env": mine}).encode(),
            capture_output=True,
            env=dict(base),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointUnavailable(
            f"{request.url}: not everything was deleted within {timeout_s:.0f} s",
            "it goes on later",
        ) from None
    try:
        answer = json.loads(done.stdout[:_MAX_ANSWER])
    except ValueError:
        raise CheckpointUnavailable(
            f"{request.url}: the program that deletes ended with {done.returncode}"
        ) from None
    if "error" in answer:
        kind = getattr(errors, str(answer["error"]), CheckpointUnavailable)
        raise kind(f"{request.url}: {answer['message']}", answer.get("hint"))
    return Removed(int(answer["count"]), int(answer["num_bytes"]))


def remove_objects(store: ObjectStore, request: FarRequest) -> Removed:
    """Delete what a request names. Raises CheckpointUnavailable, PermissionDenied, NotSupported."""
    found: dict[str, dict[str, ObjectInfo]] = {}
    beside: list[str] = []  # marks of generations and notes
    for one in store.objects():
        name, _, path = one.name.partition("/")
        if path and is_checkpoint_name(name):
            found.setdefault(name, {})[path] = one
        elif name != ROLES:
            beside.append(one.name)
    others = {name for name, files in found.items() if _is_of_another(store, name, files, request)}
    # Where another job's are, only what this job reported is known to be of this one.
    known = set(found) if not others else set(request.known)
    wanted = set(found) & known - others
    if request.only is not None:
        wanted &= set(request.only)
    total = Removed()
    for name in sorted(wanted):
        files = found[name]
        remove(store, name, files)
        total = total.plus(Removed(1, sum(one.size_bytes for one in files.values())))
    if request.only is None and not others:
        store.delete(beside)
    return total


def _is_of_another(
    store: ObjectStore, name: str, files: Mapping[str, ObjectInfo], request: FarRequest
) -> bool:
    if MANIFEST not in files or request.job_uid is None:
        return False
    try:
        manifest = manifest_of(store.get(f"{name}/{MANIFEST}"), name)
    except (CheckpointCorrupt, NotFound):
        return False
    return not is_of_job(manifest, request.job_uid)


def _work(body: Mapping[str, Any]) -> dict[str, Any]:
    import os

    env: dict[str, str] = body["env"]
    os.environ.update(env)  # noqa: TID251 - the client of the store reads it
    request = FarRequest(**body["request"])
    return asdict(remove_objects(open_store(request.url, env), request))


def main() -> None:
    """Read a request, delete, and write the answer."""
    try:
        answer = _work(json.load(sys.stdin))
    except PlatformError as error:
        name = type(error).__name__
        answer = {"error": name, "message": error.message, "hint": error.hint}
    except Exception as error:
        answer = {"error": "CheckpointUnavailable", "message": brief(error), "hint": None}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
