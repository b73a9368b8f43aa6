"""What the submission of a job fixed, and the digest that stands for it.

The digest is written into manifests of checkpoints, so it must not change with a release: what has no
value is left out, and a new fact is added only where it has one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from phalanx.core.codec import encode
from phalanx.core.contract.job import JobContract
from phalanx.core.contract.secrecy import redacted
from phalanx.core.contract.trial import TrialContract
from phalanx.store.jobs import JobFacts


def fixed_facts(facts: JobFacts, contract: JobContract) -> dict[str, Any]:
    """Everything that the submission fixed, as JSON values; values of secrets are withheld."""
    trial, spec, source = contract.trial or TrialContract(), facts.spec, contract.source
    found: dict[str, Any] = {
        "code_digest": facts.code_digest,
        "commands": {
            role.name: [redacted(word) for word in role.command.words] for role in contract.roles
        },
        "cwd": facts.caller_cwd,
        "image": spec.get("image"),
        "images": {
            role.name: role.pod.image
            for role in contract.roles
            if role.pod is not None and role.pod.image != spec.get("image")
        },
        "env": dict(spec.get("env") or {}),
        "caller_env": sorted(facts.caller_env or {}),
        "params": dict(trial.params),
        "seed": trial.seed,
        "python": spec.get("python"),
        "data": dict(spec.get("data") or {}),
    }
    if source is not None:
        body = {"commit": source.commit, "branch": source.branch}
        found["source"] = body | {"diff_digest": source.diff_digest}
    if trial.fork_of is not None:
        found["begins_from"] = encode(trial.fork_of)
    elif contract.resume is not None:
        found["begins_from"] = {"job": contract.resume.job, "path": contract.resume.places[0]}
    return {name: value for name, value in found.items() if value not in (None, "", [], {})}


def provenance_digest(facts: JobFacts, contract: JobContract) -> str:
    """The SHA-256 of `fixed_facts`; equal for a clone without changes."""
    text = json.dumps(fixed_facts(facts, contract), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
