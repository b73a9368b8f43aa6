"""One MPI process before it is the job's command: `python -m phalanx.train.mpigang.rank COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def main(argv: Sequence[str]) -> int:
    """Does not return where the command exists."""
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    try:
        os.execvpe(argv[0], list(argv), variables(env))
    except OSError as error:
        print(f"phalanx: {argv[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with this process's own place in it, as every rank of Phalanx finds it."""
    local = env["OMPI_COMM_WORLD_LOCAL_RANK"]
    found = {
        **env,
        "RANK": env["OMPI_COMM_WORLD_RANK"],
        "WORLD_SIZE": env["OMPI_COMM_WORLD_SIZE"],
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": env["OMPI_COMM_WORLD_LOCAL_SIZE"],
    }
    if local != "0":
        # The node has one file for reports; the first process of the node writes it.
        found.pop("PHALANX_REPORT_FILE", None)
        found.pop("TORCHELASTIC_ERROR_FILE", None)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
