"""Read what a job was made of: source, command, environment, parameters, software, data and places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from phalanx.core.contract.job import JobContract, SourceState
from phalanx.core.contract.provenance import (
    FactChange,
    InstalledSoftware,
    differences,
    flat,
    input_facts,
)
from phalanx.core.contract.trial import Param, TrialContract
from phalanx.core.experiments.parameters import ParamSource, effective, text_of
from phalanx.core.tenancy.principals import Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import NotFound
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.provenance import (
    BeginningView,
    FactChangeView,
    ImageView,
    InputView,
    NodePlace,
    OriginView,
    PlaceView,
    ProvenanceDiffView,
    ProvenanceView,
    ResumeView,
    SeedView,
    SoftwareView,
    SourceView,
)
from phalanx.schemas.api.tracking.runs import RunParamView
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.provenance.attempt_facts import SEEDED, last_inputs
from phalanx.services.lifecycle.provenance.digest import fixed_facts, provenance_digest
from phalanx.services.platform import Platform
from phalanx.store import events, jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.experiments import params as run_params
from phalanx.store.jobs import StoredJob
from phalanx.store.provenance import rows
from phalanx.store.provenance.rows import ImageRow, InputRow, SoftwareRow

_PLACED, _CLONED = "attempt_placed", "cloned"
_KINDS = (_PLACED, _CLONED, SEEDED)
_MAX_CHANGES = 1000
R = TypeVar("R", SoftwareRow, ImageRow, InputRow)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the store has about the provenance of one job."""

    stored: StoredJob
    contract: JobContract
    notes: Sequence[StoredEvent]  # placements, seeds, and the clone
    software: Sequence[SoftwareRow]  # by attempt and node rank
    images: Sequence[ImageRow]  # by attempt and node rank
    inputs: Sequence[InputRow]  # by attempt, node rank and name
    texts: Mapping[str, str]  # by digest
    params: Sequence[RunParamView]  # of every source, by name

    @classmethod
    def load(cls, tx: Tx, num: int) -> JobRecord:
        """Read the record of a job. Raises NotFound."""
        stored = jobs.load(tx, num)
        contract = contract_of(stored.facts)
        software = rows.software_of(tx, num)
        wanted = {one.digest for one in software}
        if contract.source is not None and contract.source.diff_text:
            wanted.add(contract.source.diff_text)
        notes = events.of_job(tx, num, limit=10_000, kinds=_KINDS)
        return cls(
            stored,
            contract,
            notes,
            software,
            rows.images_of(tx, num),
            rows.inputs_of(tx, num),
            rows.texts(tx, wanted),
            _params(tx, num),
        )

    @property
    def counting(self) -> dict[str, Param]:
        """The parameters that count; of a job of an earlier release, those of its trial."""
        trial = self.contract.trial or TrialContract()
        return {**trial.params, **{one.name: one.value for one in self.params if one.counts}}

    @property
    def seeds(self) -> list[StoredEvent]:
        """The events that have a seed, in order."""
        return [one for one in self.notes if one.kind == SEEDED]

    def installed(self, digest: str) -> InstalledSoftware:
        """The software with this digest."""
        return InstalledSoftware.parse(self.texts[digest])

    def facts(self) -> dict[str, str]:
        """Everything that two jobs are compared by, as text by name."""
        fixed = fixed_facts(self.stored.facts, self.contract)
        found = dict(flat({f"submitted.{name}": value for name, value in fixed.items()}))
        first = [one for one in self.software if one.node_rank == 0]
        if first:
            found |= self.installed(first[-1].digest).facts()
        if self.seeds:
            found["seed"] = self.seeds[-1].data["seed"]
        found |= {
            f"params.{one.name}": text_of(one.value)
            for one in self.params
            if one.counts and one.source != ParamSource.STUDY
        }
        pulled = [one.image for one in self.images if one.node_rank == 0]
        if pulled:
            found["image"] = pulled[-1]
        return found | input_facts([one.value for one in last_inputs(self.inputs)])


def _params(tx: Tx, num: int) -> list[RunParamView]:
    """All parameters of a run, of every source, by name."""
    found = run_params.of_job(tx, num)
    counts = effective(found)
    return [
        RunParamView(
            name=one.name,
            value=one.value,
            source=one.source.value,
            counts=counts[one.name] is one,
        )
        for one in found
    ]


def read_provenance(platform: Platform, num: int) -> ProvenanceView:
    """Read what a job was made of. Raises NotFound."""

    def work(tx: Tx) -> ProvenanceView:
        return _view(platform, tx, JobRecord.load(tx, num))

    return platform.store.view(work)


def compare_provenance(
    platform: Platform, num: int, against: int, by: Caller
) -> ProvenanceDiffView:
    """What differs between two jobs, by name; `before` are the values of `against`.

    With 0 it is the job that the first one is a clone of, or that one itself. Raises NotFound, also for
    a job `against` that the caller may not read.
    """

    def work(tx: Tx) -> tuple[int, list[FactChange]]:
        record = JobRecord.load(tx, num)
        repeats = record.contract.repeats
        than = against or (num if repeats is None else repeats.job)
        other = JobRecord.load(tx, than)
        if not by.may(Permission.JOBS_READ, other.stored.facts.project):
            raise NotFound(f"there is no job {job_label(than)}", "`phalanx ps` lists the jobs")
        return than, differences(other.facts(), record.facts())

    than, changes = platform.store.view(work)
    return ProvenanceDiffView(
        job=num,
        against=than,
        same=not changes,
        changes=[_change(one) for one in changes],
    )


def _view(platform: Platform, tx: Tx, record: JobRecord) -> ProvenanceView:
    stored, contract = record.stored, record.contract
    facts, spec, num = stored.facts, stored.facts.spec, stored.job.num
    trial = contract.trial or TrialContract()
    fixed = fixed_facts(facts, contract)
    return ProvenanceView(
        job=num,
        label=job_label(num),
        url=platform.job_url(num),
        owner=facts.owner,
        submitted_at=at_of(stored.job.submitted_at),
        digest=provenance_digest(facts, contract),
        source=None if contract.source is None else _source(contract.source, record.texts),
        code_digest=facts.code_digest,
        commands=fixed["commands"],
        cwd=facts.caller_cwd,
        image=spec.get("image"),
        env=dict(spec.get("env") or {}),
        caller_env=sorted(facts.caller_env or {}),
        params=record.counting,
        run_params=list(record.params),
        seed=int(record.seeds[-1].data["seed"]) if record.seeds else trial.seed,
        seeds=[_seed(one) for one in record.seeds],
        python=spec.get("python"),
        data=dict(spec.get("data") or {}),
        software=_software(record),
        images=[
            ImageView(image=image, nodes=_nodes(some))
            for image, some in _grouped((one.image, one) for one in record.images)
        ],
        software_changes=_software_changes(record),
        inputs=_inputs(record),
        begins_from=_begins_from(contract),
        resumes=_resumes(tx, num, contract),
        cloned_from=next((_origin(one) for one in record.notes if one.kind == _CLONED), None),
        places=[_place(one) for one in record.notes if one.kind == _PLACED],
    )


def _source(source: SourceState, texts: Mapping[str, str]) -> SourceView:
    return SourceView(
        commit=source.commit,
        branch=source.branch,
        changed=list(source.changed),
        num_changed=source.num_changed,
        diff_digest=source.diff_digest,
        diff=texts.get(source.diff_text, ""),
        diff_cut=source.diff_cut,
    )


def _software(record: JobRecord) -> list[SoftwareView]:
    found = []
    for digest, some in _grouped((one.digest, one) for one in record.software):
        body = record.installed(digest)
        names = set(SoftwareView.model_fields) - {"digest", "nodes"}
        known: dict[str, Any] = {name: getattr(body, name) for name in names}
        found.append(SoftwareView(digest=digest, nodes=_nodes(some), **known))
    return found


def _software_changes(record: JobRecord) -> list[FactChangeView]:
    digests = list(dict.fromkeys(one.digest for one in record.software))
    changes = list[FactChangeView]()
    for digest in digests[1:]:
        before, after = record.installed(digests[0]), record.installed(digest)
        changes += [_change(one) for one in differences(before.facts(), after.facts())]
    return changes[:_MAX_CHANGES]


def _inputs(record: JobRecord) -> list[InputView]:
    return [
        InputView(
            name=one.name,
            place=one.place,
            num_files=one.num_files,
            size_bytes=one.size_bytes,
            fingerprint=one.fingerprint,
            nodes=_nodes(some),
        )
        for one, some in _grouped((row.value, row) for row in record.inputs)
    ]


K = TypeVar("K")


def _grouped(pairs: Iterable[tuple[K, R]]) -> list[tuple[K, list[R]]]:
    """The rows with the same value together, in the order of their first."""
    groups: dict[K, list[R]] = {}
    for value, row in pairs:
        groups.setdefault(value, []).append(row)
    return list(groups.items())


def _nodes(
    some: Sequence[SoftwareRow] | Sequence[ImageRow] | Sequence[InputRow],
) -> list[NodePlace]:
    return [NodePlace(attempt=one.attempt, node_rank=one.node_rank) for one in some]


def _seed(note: StoredEvent) -> SeedView:
    return SeedView(
        attempt=note.attempt or 0, generation=note.generation or 0, seed=int(note.data["seed"])
    )


def _change(one: FactChange) -> FactChangeView:
    return FactChangeView(name=one.name, before=one.before, after=one.after)


def _begins_from(contract: JobContract) -> BeginningView | None:
    fork, resume = None if contract.trial is None else contract.trial.fork_of, contract.resume
    if fork is not None:
        return BeginningView(job=fork.job, path=fork.path)
    if resume is None:
        return None
    return BeginningView(job=resume.job, path=resume.places[0], step=resume.step)


def _resumes(tx: Tx, num: int, contract: JobContract) -> list[ResumeView]:
    """The checkpoints that generations continued from: the lineage of the final weights."""
    own = {PurePath(one.path).name: one for one in lineage.checkpoints_of(tx, num)}
    begins = _begins_from(contract)
    return [
        ResumeView(
            attempt=one.attempt,
            generation=one.generation,
            path=one.path,
            step=one.step,
            job=begins.job
            if begins is not None and one.path is not None and PurePath(one.path).name not in own
            else None,
        )
        for one in lineage.restores_of(tx, num)
    ]


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
