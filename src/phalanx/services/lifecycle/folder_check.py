"""Check at submit that no job begins with the checkpoint folder of another one unless its owner wants that.

An unmodified script resumes from what its folder holds. In a folder that an earlier job filled, it would
find the work done and succeed at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.core.jobs.model import TERMINAL, JobState
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import job_label
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.job import JobSpec
from phalanx.services.lifecycle import code
from phalanx.store import jobs
from phalanx.store.database import Tx

PATH = "checkpoint.directory"
_HINT = (
    "to begin with these files add --continue (checkpoint.continue: true); else name another folder"
)


def check_folder(tx: Tx, home: HomeLayout, spec: JobSpec, request: SubmitRequest) -> None:
    """Raise SpecInvalid when the job's checkpoint folder is in use, or has files without `continue`.

    The database knows which jobs have used a folder; nothing is written into the folder itself.
    """
    wanted = spec.checkpoint.directory
    if wanted is None:
        return
    if request.kind != "run" or request.caller_cwd is None or not os.path.isdir(request.caller_cwd):
        # Every attempt of such a job has a working directory of its own, made from the archive.
        if not spec.checkpoint.continues and _is_in_code(home, request.code, wanted):
            said = "the work directory that is sent with the job has files in this folder"
            raise SpecInvalid([Problem(PATH, said, wanted)], _HINT)
        return
    folder = Path(request.caller_cwd, wanted)
    where = os.path.realpath(folder)
    others = [
        one
        for one in jobs.folder_users(tx)
        if os.path.realpath(Path(one.cwd, one.directory)) == where
    ]
    live = next((one for one in others if JobState(one.state) not in TERMINAL), None)
    if live is not None:
        said = f"{folder} is the folder of {job_label(live.num)}, which has not ended"
        raise SpecInvalid([Problem(PATH, said)], "stop that job first, or name another folder")
    if spec.checkpoint.continues or not _has_content(folder):
        return
    said = f"{folder} is not empty"
    if others:
        said += f": {job_label(others[0].num)} ({others[0].state}) has used it"
    raise SpecInvalid([Problem(PATH, said)], _HINT)


def _has_content(folder: Path) -> bool:
    """Whether there is anything; an empty folder and one that cannot be read count as nothing."""
    try:
        with os.scandir(folder) as entries:
            # Earlier releases left a hidden file of their own.
            return any(entry.name != ".phalanx-put-back" for entry in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _is_in_code(home: HomeLayout, digest: str | None, folder: str) -> bool:
    return digest is not None and code.holds_below(home, digest, folder)
