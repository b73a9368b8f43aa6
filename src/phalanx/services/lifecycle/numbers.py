"""Job numbers that a home has used before, whatever its database says.

After a database was lost or an older one was restored, its counter begins again, at numbers that have
folders, checkpoints and perhaps live supervisors of other jobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from phalanx.kit.text import parse_job_label
from phalanx.schemas.home import HomeLayout
from phalanx.store.database import Store, Tx, raise_counter


def continue_numbers(store: Store, home: HomeLayout) -> None:
    """Let new jobs have numbers above all those with folders in the home."""
    used = max(_used_numbers(home), default=0)
    if used:

        def work(tx: Tx) -> None:
            raise_counter(tx, "job", used)

        store.transact(work)


def _used_numbers(home: HomeLayout) -> Iterator[int]:
    yield from _numbers_in(home.root / "jobs")
    for project in _folders_in(home.checkpoints_dir):
        yield from _numbers_in(project)


def _numbers_in(folder: Path) -> Iterator[int]:
    for one in _folders_in(folder):
        num = parse_job_label(one.name) if one.name.startswith("j-") else None
        if num is not None:
            yield num


def _folders_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            yield from (Path(one.path) for one in found if one.is_dir())
    except OSError:
        return
