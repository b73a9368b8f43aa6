"""Request Python stacks of a job's ranks, and read stored stacks."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.core.gang.stacks import elsewhere, place
from phalanx.core.jobs.events import ProfileRequested, SaveRequested, StacksRequested
from phalanx.core.jobs.model import Attempt
from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import RankStacksView, RequestTicket, StacksCapture, StacksView
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.idempotency import RequestKey, once

NOTE = "stacks"
_SHOWN: dict[type, str] = {
    StacksRequested: "stacks {} --kept",
    ProfileRequested: "profile {} --kept",
    SaveRequested: "checkpoints {}",
}
"""The command that shows earlier results of a request."""
_Key = tuple[int, int, int]  # attempt, generation, request


def ask_stacks(
    platform: Platform, num: int, now: int, actor: str, key: RequestKey | None = None
) -> RequestTicket:
    """Request the Python stacks of every rank.

    Raises NotFound, and Conflict where no rank runs.
    """

    return ask_ranks(platform, num, StacksRequested(), now, actor, key)


def ask_ranks(
    platform: Platform,
    num: int,
    event: StacksRequested | ProfileRequested | SaveRequested,
    now: int,
    actor: str,
    key: RequestKey | None = None,
) -> RequestTicket:
    """Send a request to the ranks of a job, once for each key.

    Raises NotFound, and Conflict where no rank runs or the key is that of another request.
    """

    def asked(attempt: Attempt | None) -> int:
        if attempt is None:
            return 0
        if isinstance(event, SaveRequested):
            return attempt.saves
        profile = 0 if attempt.profile is None else attempt.profile.request
        return attempt.stacks if isinstance(event, StacksRequested) else profile

    def work(tx: Tx) -> RequestTicket:
        return RequestTicket.model_validate(once(tx, key, lambda: send(tx).model_dump()))

    def send(tx: Tx) -> RequestTicket:
        before = jobs.load(tx, num).job.attempt
        job = commit_events(tx, num, [event], now, actor).job
        attempt = job.attempt
        if attempt is None or asked(attempt) == asked(before):
            raise Conflict(
                f"no rank of {job_label(num)} runs: the job is {job.state}",
                f"what is stored: phalanx {_SHOWN[type(event)].format(job_label(num))}",
            )
        return RequestTicket(
            attempt=attempt.num, generation=attempt.generation, request=asked(attempt)
        )

    return platform.store.transact(work)


def read_stacks(platform: Platform, num: int) -> StacksView:
    """Read the stored stacks of a job, oldest first. Raises NotFound."""

    def work(tx: Tx) -> StacksView:
        stored = jobs.load(tx, num)
        notes = events.of_job(tx, num, limit=100_000, kinds=(NOTE,))
        live = stored.job.attempt
        return StacksView(
            captures=captures(notes),
            attempt=None if live is None else live.num,
            generation=None if live is None else live.generation,
            world_size=stored.job.policy.world_size,
        )

    return platform.store.view(work)


def captures(notes: Iterable[StoredEvent]) -> list[StacksCapture]:
    """Group the reported stacks by request.

    A node that found its ranks hanging sends their stacks unasked; they stand in for its answer to
    the question that this makes the control plane ask.
    """
    found: dict[_Key, dict[int, RankStacksView]] = {}
    began: dict[_Key, int] = {}
    for note in notes:
        key = (note.attempt or 0, note.generation or 0, int(note.data["request"]))
        began.setdefault(key, int(note.data["at"]))
        for row in note.data["ranks"]:
            found.setdefault(key, {})[int(row["rank"])] = _rank(row, int(note.data["node_rank"]))
    for attempt, generation, request in list(found):
        unasked = found.get((attempt, generation, 0))
        if request == 0 or unasked is None:
            continue
        asked = found[attempt, generation, request]
        missing = {rank: one for rank, one in unasked.items() if rank not in asked}
        if began[attempt, generation, request] >= began[attempt, generation, 0]:
            asked |= missing
            found[attempt, generation, 0] = {}
    return [_capture(key, began[key], ranks) for key, ranks in found.items() if ranks]


def _capture(key: _Key, at: int, ranks: dict[int, RankStacksView]) -> StacksCapture:
    odd = elsewhere({rank: one.text for rank, one in ranks.items()}) if len(ranks) > 1 else ()
    return StacksCapture(
        attempt=key[0],
        generation=key[1],
        request=key[2],
        at=at_of(at),
        ranks=[ranks[rank] for rank in sorted(ranks)],
        elsewhere=list(odd),
    )


def _rank(row: dict[str, object], node_rank: int) -> RankStacksView:
    text = str(row["text"])
    where = place(text)
    return RankStacksView(
        rank=int(str(row["rank"])),
        node_rank=node_rank,
        place=None if where is None else str(where),
        text=text,
        why=str(row["why"]),
    )
