"""Request a checkpoint of a running job, and follow the request to the committed checkpoint."""

from __future__ import annotations

from phalanx.core.jobs.events import SaveRequested
from phalanx.errors import Conflict, NotSupported
from phalanx.kit.text import job_label
from phalanx.schemas.api.telemetry import RequestTicket, SavesView, SaveView
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.platform import Platform
from phalanx.services.queries.stacks import ask_ranks
from phalanx.store import events, jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.idempotency import RequestKey
from phalanx.store.lineage import CheckpointRow

NOTE = "save_begun"


def ask_save(
    platform: Platform, num: int, now: int, actor: str, key: RequestKey | None = None
) -> RequestTicket:
    """Have the ranks save a checkpoint at the end of their step.

    Raises NotFound, NotSupported for a script that saves into its own folder, and Conflict where no rank
    runs or none has made a step.
    """

    def ready(tx: Tx) -> None:
        stored = jobs.load(tx, num)
        label, attempt = job_label(num), stored.job.attempt
        if contract_of(stored.facts).roles[0].checkpoint.directory is not None:
            raise NotSupported(
                f"the script of {label} saves into a folder of its own, when it wants to",
                "only scripts with phalanx.train can be asked for a checkpoint",
            )
        if attempt is None:
            return
        found = lineage.find_generation(tx, (num, attempt.num, attempt.generation))
        if found is None or found.first_step_at is None:
            raise Conflict(
                f"{label} has reported no step yet, so its ranks cannot be asked for a checkpoint",
                "ask again after its first step; scripts without phalanx.train save when they want to",
            )

    platform.store.view(ready)
    return ask_ranks(platform, num, SaveRequested(), now, actor, key)


def read_saves(platform: Platform, num: int) -> SavesView:
    """Read what became of requests for a checkpoint, oldest first. Raises NotFound."""

    def work(tx: Tx) -> SavesView:
        live = jobs.load(tx, num).job.attempt
        notes = events.of_job(tx, num, limit=100_000, kinds=(NOTE,))
        rows = [row for row in lineage.checkpoints_of(tx, num) if row.state != "quarantined"]
        return SavesView(
            saves=[_view(note, rows) for note in notes],
            attempt=None if live is None else live.num,
            generation=None if live is None else live.generation,
        )

    return platform.store.view(work)


def _view(note: StoredEvent, rows: list[CheckpointRow]) -> SaveView:
    """A request that the ranks act on, with the checkpoint that they committed for it."""
    attempt, generation, step = note.attempt or 0, note.generation or 0, int(note.data["step"])
    found = next(
        (
            row
            for row in rows
            if (row.attempt, row.generation) == (attempt, generation) and row.step >= step
        ),
        None,
    )
    return SaveView(
        attempt=attempt,
        generation=generation,
        request=int(note.data["request"]),
        step=step,
        failed=bool(note.data["failed"]),
        path=None if found is None else found.path,
        saved_step=None if found is None else found.step,
        size_bytes=None if found is None else found.size_bytes,
        took_s=None if found is None else found.took_s,
    )
