"""Store what a node reports of its software and inputs, and tell what has changed.

Compared are the attempts of one job, the nodes of one attempt, and a clone with the job that it repeats.
What differs becomes an event of the job: `software_changed` or `inputs_changed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.core.contract.provenance import (
    FactChange,
    InputFingerprint,
    InstalledSoftware,
    differences,
    expected_facts,
    in_words,
    input_facts,
)
from phalanx.core.experiments.parameters import ParamSource, params_of
from phalanx.kit.text import job_label
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.commit import Note
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.experiments import params as run_params
from phalanx.store.provenance import rows
from phalanx.store.provenance.rows import InputRow, SoftwareRow

Key = tuple[int, int, int]
"""Job, attempt and node rank."""
SOFTWARE, INPUTS = "software_changed", "inputs_changed"
SEEDED = "seeded"
PARAMS = "params_changed"
_MAX_TOLD = 200


def software_events(tx: Tx, key: Key, report: wire.SoftwareReport, now: int) -> list[Note]:
    """Store the software of a node; returns the events about what differs from earlier reports."""
    job, attempt, node = key
    software = report.to_core()
    before = rows.software_of(tx, job)
    digest = rows.put_text(tx, software.text(), now)
    rows.put_software(tx, SoftwareRow(job, attempt, node, digest, now))
    found = list[Note]()
    for said, other in _software_before(tx, key, before):
        if other.digest != digest:
            text = rows.texts(tx, [other.digest])[other.digest]
            changes = differences(InstalledSoftware.parse(text).facts(), software.facts())
            found.append(_note(SOFTWARE, key, report.generation, said, "software", changes))
    return found


def _software_before(
    tx: Tx, key: Key, known: Sequence[SoftwareRow]
) -> list[tuple[str, SoftwareRow]]:
    """The reports that a new one is compared with: of the job it repeats, the last attempt, node 0."""
    job, attempt, node = key
    found = list[tuple[str, SoftwareRow]]()
    if attempt == 1 and node == 0 and (source := source_of(tx, job)) is not None:
        theirs = [one for one in rows.software_of(tx, source) if one.node_rank == 0]
        found += [(job_label(source), one) for one in theirs[-1:]]
    earlier = [one for one in known if one.attempt < attempt and one.node_rank == node]
    found += [(f"attempt {one.attempt}", one) for one in earlier[-1:]]
    first = [one for one in known if one.attempt == attempt and one.node_rank == 0]
    found += [("node rank 0", one) for one in first if node != 0]
    return found


def seed_events(tx: Tx, key: Key, report: wire.SeedReport) -> list[Note]:
    """The event that has the seed of a generation; none where it is that of the generation before."""
    job, attempt, _ = key
    last = events.newest(tx, [job], (SEEDED,)).get(job)
    if last is not None and last.data["seed"] == report.seed:
        return []
    return [Note(SEEDED, attempt, report.generation, {"seed": report.seed})]


def params_events(tx: Tx, key: Key, report: wire.ParamsReport, now: int) -> list[Note]:
    """Store parameters that the script names; returns an event about those that it named otherwise before.

    The record of a run does not change: the first value of a name stays.
    """
    job, attempt, _ = key
    fresh = params_of(ParamSource.SCRIPT, report.values)
    known = {one.name: one for one in run_params.of_script(tx, job)}
    run_params.put_of_script(tx, job, [one for one in fresh if one.name not in known], now)
    changes = differences(
        {one.name: known[one.name].text for one in fresh if one.name in known},
        {one.name: one.text for one in fresh if one.name in known},
    )
    if not changes:
        return []
    said = f"the script named other parameters than before, which stay: {in_words(changes)}"
    told = [[one.name, one.before, one.after] for one in changes[:_MAX_TOLD]]
    data = {"message": said, "changes": told, "num_changes": len(changes)}
    return [Note(PARAMS, attempt, report.generation, data)]


def input_events(tx: Tx, key: Key, report: wire.InputsReport, now: int) -> list[Note]:
    """Store the inputs of a node; returns the events about what differs from earlier reports."""
    before = rows.inputs_of(tx, key[0])
    inputs = [InputFingerprint(**one.model_dump()) for one in report.inputs]
    rows.put_inputs(tx, key, list({one.name: one for one in inputs}.values()), now)
    found = list[Note]()
    for said, others in _inputs_before(tx, key, before):
        theirs = input_facts([one.value for one in others])
        if changes := differences(theirs, input_facts(inputs)):
            found.append(_note(INPUTS, key, report.generation, said, "data", changes))
    return found


def _inputs_before(tx: Tx, key: Key, known: Sequence[InputRow]) -> list[tuple[str, list[InputRow]]]:
    job, attempt, node = key
    found = list[tuple[str, list[InputRow]]]()
    if attempt == 1 and node == 0 and (source := source_of(tx, job)) is not None:
        found.append((job_label(source), last_inputs(rows.inputs_of(tx, source))))
    earlier = [one for one in known if one.attempt < attempt and one.node_rank == node]
    if earlier:
        found.append((f"attempt {earlier[-1].attempt}", last_inputs(earlier)))
    if node != 0:
        first = [one for one in known if one.attempt == attempt and one.node_rank == 0]
        found.append(("node rank 0", first))
    return [(said, others) for said, others in found if others]


def last_inputs(known: Sequence[InputRow]) -> list[InputRow]:
    """The inputs of the first node that reported in the last attempt."""
    last = max((one.attempt for one in known), default=0)
    node = min((one.node_rank for one in known if one.attempt == last), default=0)
    return [one for one in known if (one.attempt, one.node_rank) == (last, node)]


def source_of(tx: Tx, job: int) -> int | None:
    """The job that a job repeats; None: it repeats none."""
    repeats = contract_of(jobs.load(tx, job).facts).repeats
    return None if repeats is None else repeats.job


def expected_of(tx: Tx, job: int) -> Mapping[str, str]:
    """The versions and fingerprints of the last attempt of a job that reported them; empty: none did."""
    software = [one for one in rows.software_of(tx, job) if one.node_rank == 0]
    found = dict[str, str]()
    if software:
        last = software[-1].digest
        found |= expected_facts(InstalledSoftware.parse(rows.texts(tx, [last])[last]))
    return found | input_facts([one.value for one in last_inputs(rows.inputs_of(tx, job))])


def _note(
    kind: str, key: Key, generation: int, than: str, what: str, changes: Sequence[FactChange]
) -> Note:
    """The event about differences; `than` names what was compared with."""
    _, attempt, node = key
    message = f"the {what} of node rank {node} in attempt {attempt} differs from that of {than}: "
    told = [[one.name, one.before, one.after] for one in changes[:_MAX_TOLD]]
    data = {
        "message": message + in_words(changes),
        "against": than,
        "node_rank": node,
        "changes": told,
        "num_changes": len(changes),
    }
    return Note(kind, attempt, generation, data)
