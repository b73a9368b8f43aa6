"""Stores of data outside the nodes: replace them, list them, and tell what runs outside its residency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.pools import StoreView
from phalanx.schemas.pools.project_file import StoreSpec
from phalanx.services.lifecycle.commit import Note, commit_many
from phalanx.services.platform import Platform
from phalanx.services.residency.rules import OutsideJob, ResidencyRules
from phalanx.store import events, resources
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.resources import Applied
from phalanx.store.tenancy import audit

_LEFT, _BACK = "residency_left", "residency_restored"


def replace_stores(tx: Tx, stores: Sequence[StoreSpec], now: int, actor: str) -> None:
    """Replace all declared stores; those that stay as they are keep their time."""
    before = {one.name: StoreSpec(**one.body) for one in resources.data_stores.now(tx)}
    after = {one.url: one for one in stores}
    for url in before.keys() - after.keys():
        resources.data_stores.remove(tx, url)
    changed = [one for url, one in after.items() if before.get(url) != one]
    resources.data_stores.put(
        tx, [Applied(one.url, one.model_dump(mode="json"), now, actor) for one in changed]
    )


def list_stores(platform: Platform) -> list[StoreView]:
    """The declared stores by URL."""
    found = platform.store.view(resources.data_stores.now)
    return [
        StoreView(
            url=one.name,
            residency=StoreSpec(**one.body).residency,
            applied_at=at_of(one.applied_at),
            applied_by=one.applied_by,
        )
        for one in found
    ]


def tell_outside(platform: Platform, now: int, actor: str) -> list[str]:
    """Running jobs on nodes, or with stores, that their residency does not allow any more, in words.

    Each of them gets an event, and another one when it is inside again. What its newest event says
    already is not repeated. Raises ExecutorUnavailable.
    """

    def look(tx: Tx) -> tuple[list[OutsideJob], list[_Turn]]:
        rules = ResidencyRules.of(resources.projects.now(tx), resources.data_stores.now(tx))
        holding = platform.scheduler_cache.rows.holding(tx)
        found = rules.outside(holding, labels)
        return found, _turns(tx, holding, found)

    def write(tx: Tx) -> None:
        for one in turns:
            before, after = ({"outside_residency": said or None} for said in (one.before, one.said))
            audit.describe(tx, f"job {job_label(one.job)}", before, after)
        commit_many(tx, [(one.job, [one.note]) for one in turns], now, actor)

    labels = {node.id: node.labels for node in platform.cluster()}
    found, turns = platform.store.view(look)
    # Each transaction of a request leaves a row in the audit log.
    if turns:
        platform.store.transact(write)
    return [one.text for one in found]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A running job that has come to be outside or inside, and its event."""

    job: int
    before: str  # how it was outside; empty: it was not
    said: str  # how it is outside now
    note: Note


def _turns(tx: Tx, holding: Iterable[StoredJob], outside: Iterable[OutsideJob]) -> list[_Turn]:
    live = {one.job.num: one.job.attempt for one in holding if one.job.attempt is not None}
    problems: dict[int, list[str]] = {num: [] for num in live}
    for one in outside:
        problems[one.stored.job.num].append(one.problem)
    told = events.newest(tx, sorted(live), (_LEFT, _BACK))
    found = []
    for num, attempt in live.items():
        last, said = told.get(num), "; ".join(problems[num])
        before = ""
        if last is not None and last.kind == _LEFT and last.attempt == attempt.num:
            before = last.data["message"]
        if said != before:
            data = {"message": said} if said else {}
            note = Note(_LEFT if said else _BACK, attempt.num, attempt.generation, data)
            found.append(_Turn(num, before, said, note))
    return found
