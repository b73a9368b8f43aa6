"""One MPI process before it is the job's command: `python -m phalanx.train.frameworks.mpi.rank COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.launch.command import ready

FOLDER_VARIABLE = "PHALANX_MPI_FOLDER"
TMPDIR_VARIABLE = "PHALANX_MPI_TMPDIR"
PID_STEM = "rank-"


def main(argv: Sequence[str]) -> int:
    """Become the command: words, or one line for the shell after `--shell`. Returns only on failure."""
    given = dict(os.environ)  # noqa: TID251 - a program's entry point
    env = variables(given)
    command: Sequence[str] | str = argv[1] if argv[0] == "--shell" else argv
    try:
        Path(given[FOLDER_VARIABLE], PID_STEM + env["RANK"]).write_text(str(os.getpid()))
        words, env = ready(command, workdir=env["PHALANX_CODE_DIR"], env=env)
        os.execve(words[0], words, env)
    except OSError as error:
        print(f"phalanx: {error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank, from the variables of Open MPI."""
    local = env["OMPI_COMM_WORLD_LOCAL_RANK"]
    found = {
        **env,
        "RANK": env["OMPI_COMM_WORLD_RANK"],
        "WORLD_SIZE": env["OMPI_COMM_WORLD_SIZE"],
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": env["OMPI_COMM_WORLD_LOCAL_SIZE"],
    }
    if folder := found.pop(FOLDER_VARIABLE, ""):
        found.setdefault("OMPI_MCA_btl_vader_backing_directory", folder)
    # mpirun makes one stream of all ranks' output, as it comes: unbuffered, Python writes a line in two
    # pieces, and those of other ranks come between. Each has a terminal of its own and writes whole lines.
    found.pop("PYTHONUNBUFFERED", None)
    found.pop("TMPDIR", None)
    if usual := found.pop(TMPDIR_VARIABLE, ""):
        found["TMPDIR"] = usual
    if local != "0":
        # The node has one file for reports; the first process of the node writes it.
        found.pop("PHALANX_REPORT_FILE", None)
        found.pop("TORCHELASTIC_ERROR_FILE", None)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
