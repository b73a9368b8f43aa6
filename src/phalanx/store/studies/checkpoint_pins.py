"""Pins: checkpoints that retention must not delete, and what needs them.

A pin and the removal of a checkpoint exclude each other: both are transactions on the checkpoint's row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from phalanx.store.database import Tx
from phalanx.store.tables import checkpoint_pins, checkpoints, jobs


def job_of(tx: Tx, study: int, path: str) -> int | None:
    """The job of a study's trial that made a checkpoint; None where there is none that can be used."""
    there = checkpoints.c
    query = (
        select(there.job)
        .join(jobs, jobs.c.num == there.job)
        .where(jobs.c.study == study, there.path == path, there.state == "valid")
        .order_by(there.job)
    )
    found = tx.conn.execute(query.limit(1)).scalar()
    return None if found is None else int(found)


def newest_of(tx: Tx, study: int, trial: int) -> str | None:
    """The path of the newest checkpoint that the jobs of a trial have left; None without one."""
    there = checkpoints.c
    query = (
        select(there.path)
        .join(jobs, jobs.c.num == there.job)
        .where(jobs.c.study == study, jobs.c.trial == trial, there.state == "valid")
        .order_by(there.job.desc(), there.step.desc(), there.id.desc())
    )
    return tx.conn.execute(query.limit(1)).scalar()


def pin(tx: Tx, job: int, path: str, by: str, at: int) -> bool:
    """Keep a checkpoint for as long as `by` needs it, such as `s-3`; False where it is not there any more.

    Repeating a pin changes nothing. `at` is in µs UTC.
    """
    there = checkpoints.c
    state = tx.conn.execute(
        select(there.state).where(there.job == job, there.path == path).with_for_update()
    ).scalar()
    if state != "valid":
        return False
    here = checkpoint_pins.c
    same = (here.job == job) & (here.path == path) & (here.by == by)
    if tx.conn.execute(select(here.at).where(same)).first() is None:
        tx.conn.execute(checkpoint_pins.insert(), {"job": job, "path": path, "by": by, "at": at})
    return True


def unpin(tx: Tx, by: str, paths: Sequence[str] | None = None) -> int:
    """Give up the pins of `by`, those of some paths or all; returns their number."""
    where = checkpoint_pins.c.by == by
    if paths is not None:
        where &= checkpoint_pins.c.path.in_(list(paths))
    return int(tx.conn.execute(checkpoint_pins.delete().where(where)).rowcount)


def pinned(tx: Tx, job: int) -> set[str]:
    """Paths of a job's checkpoints with a pin."""
    query = select(checkpoint_pins.c.path).where(checkpoint_pins.c.job == job).distinct()
    return set(tx.conn.execute(query).scalars())


def mark_removed(tx: Tx, job: int, paths: Sequence[str]) -> list[str]:
    """Mark those of these checkpoints as removed that have no pin; returns them, to delete their files.

    One that is marked already is returned again: a crash may have left its files. Quarantined and unknown
    ones are not returned. The rows stay locked, so that no pin comes between.
    """
    there = checkpoints.c
    own = (there.job == job) & there.path.in_(list(paths)) & there.state.in_(("valid", "removed"))
    query = select(there.path).where(own).order_by(there.id).with_for_update()
    found = list(tx.conn.execute(query).scalars())
    kept = pinned(tx, job)
    free = [path for path in found if path not in kept]
    if free:
        same = (there.job == job) & there.path.in_(free)
        tx.conn.execute(checkpoints.update().where(same).values(state="removed"))
    return free


def is_of_study(by: str) -> bool:
    """Whether a study set a pin, by its label such as `s-3`; ids of users have a colon."""
    return by.startswith("s-") and by.removeprefix("s-").isdecimal()


def pinned_by_users(tx: Tx, job: int) -> set[str]:
    """Paths of a job's checkpoints that users have pinned."""
    here = checkpoint_pins.c
    query = select(here.path, here.by).where(here.job == job)
    return {path for path, by in tx.conn.execute(query) if not is_of_study(by)}


def unpin_users(tx: Tx, job: int, path: str) -> int:
    """Give up the pins that users set on a checkpoint; returns their number."""
    here = checkpoint_pins.c
    same = (here.job == job) & (here.path == path) & (func.substr(here.by, 1, 2) != "s-")
    return int(tx.conn.execute(checkpoint_pins.delete().where(same)).rowcount)
