"""Read what a job was made of: source, command, environment, parameters and places."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from phalanx.core.contract.secrecy import redacted
from phalanx.core.contract.trial import TrialContract
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.provenance import OriginView, PlaceView, ProvenanceView, SourceView
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.platform import Platform
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.jobs import StoredJob

_PLACED, _CLONED = "attempt_placed", "cloned"
_PER_SUBMISSION = {
    "job",
    "label",
    "url",
    "owner",
    "submitted_at",
    "cloned_from",
    "places",
    "digest",
}
"""What differs between a job and its clone."""


def read_provenance(platform: Platform, num: int) -> ProvenanceView:
    """Read what a job was made of. Raises NotFound."""

    def work(tx: Tx) -> ProvenanceView:
        stored = jobs.load(tx, num)
        return _view(
            platform, stored, events.of_job(tx, num, limit=10_000, kinds=(_PLACED, _CLONED))
        )

    return platform.store.view(work)


def _view(platform: Platform, stored: StoredJob, notes: list[StoredEvent]) -> ProvenanceView:
    facts, contract = stored.facts, contract_of(stored.facts)
    trial, spec = contract.trial or TrialContract(), facts.spec
    source = contract.source
    view = ProvenanceView(
        job=stored.job.num,
        label=job_label(stored.job.num),
        url=platform.job_url(stored.job.num),
        owner=facts.owner,
        submitted_at=at_of(stored.job.submitted_at),
        digest="",
        source=None if source is None else SourceView.model_validate(source, from_attributes=True),
        code_digest=facts.code_digest,
        commands={
            role.name: [redacted(word) for word in role.command.words] for role in contract.roles
        },
        cwd=facts.caller_cwd,
        image=spec.get("image"),
        env=dict(spec.get("env") or {}),
        caller_env=sorted(facts.caller_env or {}),
        params=dict(trial.params),
        seed=trial.seed,
        python=spec.get("python"),
        data=dict(spec.get("data") or {}),
        cloned_from=next((_origin(one) for one in notes if one.kind == _CLONED), None),
        places=[_place(one) for one in notes if one.kind == _PLACED],
    )
    return view.model_copy(update={"digest": _digest(view, contract.trial)})


def _digest(view: ProvenanceView, trial: TrialContract | None) -> str:
    fixed: dict[str, Any] = view.model_dump(mode="json", exclude=_PER_SUBMISSION)
    if trial is not None and trial.fork_of is not None:
        fixed["begins_from"] = [trial.fork_of.job, trial.fork_of.path]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _origin(note: StoredEvent) -> OriginView:
    return OriginView(job=int(note.data["job"]), checkpoint=note.data.get("checkpoint"))


def _place(note: StoredEvent) -> PlaceView:
    placement = note.data["placement"]
    shares = placement["shares"]
    return PlaceView(
        attempt=int(note.data["attempt"]),
        at=at_of(note.at),
        pool=placement["pool"],
        nodes=[share["node"] for share in shares],
        slots=sum(len(share["slots"]) for share in shares),
        kinds=sorted(
            {one["slot_type"] for one in note.data.get("offers") or [] if one["slot_type"]}
        ),
    )
