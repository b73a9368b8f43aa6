"""Archive and pin jobs, and pin single checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

from phalanx.checkpoint.catalog import write_pins
from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.services.lifecycle.assignments import checkpoint_dir
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.lifecycle.provenance.resume_sources import chosen
from phalanx.services.platform import Platform
from phalanx.store import jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.retention import marks
from phalanx.store.retention.marks import JobMark, MarkKind
from phalanx.store.studies import checkpoint_pins
from phalanx.store.tenancy import audit

_LONGEST_BY = 128
_NOTES = {
    (MarkKind.ARCHIVED, True): "archived",
    (MarkKind.ARCHIVED, False): "unarchived",
    (MarkKind.PINNED, True): "pinned",
    (MarkKind.PINNED, False): "unpinned",
}


def set_mark(
    platform: Platform, num: int, kind: MarkKind, is_set: bool, now: int, actor: str
) -> None:
    """Set a mark on a job or take it away; one that is so already changes nothing.

    Raises NotFound, and Conflict where a job that has not ended is to be archived.
    """

    def work(tx: Tx) -> None:
        stored = jobs.load(tx, num)
        if kind is MarkKind.ARCHIVED and is_set and not stored.job.is_terminal:
            raise Conflict(
                f"{job_label(num)} has not ended ({stored.job.state}), and only jobs that have ended can "
                "be archived",
                f"stop it: phalanx stop {job_label(num)}",
            )
        before = marks.of_job(tx, num)
        if is_set:
            changed = marks.put(tx, JobMark(kind.value, num, now, actor))
        else:
            changed = marks.drop(tx, kind, num)
        if not changed:
            return
        audit.describe(
            tx, f"job {job_label(num)}", {kind.value: kind in before}, {kind.value: is_set}
        )
        commit_events(tx, num, [Note(_NOTES[kind, is_set], 0, 0)], now, actor, known=stored)

    platform.store.transact(work)


def set_checkpoint_pin(
    platform: Platform, num: int, wanted: str, is_pinned: bool, now: int, actor: str
) -> str:
    """Pin a checkpoint or take the pins of users away; returns its path.

    `wanted` is `latest`, `best`, a step, or the name or path of its folder. The ranks of a job that has not
    ended learn of the pin by a file in its checkpoint folder. Raises NotFound, CheckpointNotFound, and
    Conflict where they cannot.
    """
    label = job_label(num)
    stored, rows, before = platform.store.view(
        lambda tx: (
            jobs.load(tx, num),
            lineage.checkpoints_of(tx, num),
            checkpoint_pins.pinned_by_users(tx, num),
        )
    )
    path = chosen(stored, rows, wanted).path
    folder = checkpoint_dir(platform.home, stored.facts.project, num)
    told = not stored.job.is_terminal
    if is_pinned and told:
        # Before the row is stored: what the ranks delete, they decide with the file alone.
        _tell_ranks(folder, {*before, path}, path)

    def work(tx: Tx) -> set[str]:
        stored = jobs.load(tx, num)
        before = checkpoint_pins.pinned_by_users(tx, num)
        if is_pinned == (path in before):
            return before
        if not is_pinned:
            checkpoint_pins.unpin_users(tx, num, path)
        elif not checkpoint_pins.pin(tx, num, path, actor[:_LONGEST_BY], now):
            raise Conflict(f"{path} has just been deleted", "pin another checkpoint")
        what = f"checkpoint {path} of {label}"
        audit.describe(tx, what, {"pinned": not is_pinned}, {"pinned": is_pinned})
        note = Note(_NOTES[MarkKind.PINNED, is_pinned], 0, 0, {"checkpoint": path})
        commit_events(tx, num, [note], now, actor, known=stored)
        return checkpoint_pins.pinned_by_users(tx, num)

    after = platform.store.transact(work)
    if told and not is_pinned:
        _tell_ranks(folder, after, path)
    return path


def _tell_ranks(folder: Path, paths: Iterable[str], path: str) -> None:
    """Write the names of the pinned checkpoints where ranks look before they delete any.

    Raises Conflict where this machine does not see the folder of a job that has not ended.
    """
    own = folder if "://" in path else Path(path).parent
    is_here = own.is_relative_to(folder) and own.is_dir()
    if not is_here or ("://" not in path and not Path(path).is_dir()):
        raise Conflict(
            f"the ranks cannot be told of a pin: this machine does not see the folder of {path}",
            "pin or unpin the checkpoint after the end of the job",
        )
    mine = [one for one in paths if "://" in one or Path(one).parent == own]
    try:
        write_pins(own, [PurePath(one).name for one in mine])
    except OSError as error:
        raise Conflict(f"{own}: the pins cannot be written: {error.strerror}") from error
