"""The remote shell that `mpirun` calls: `python -m phalanx.train.frameworks.mpi.agent SOCKET NODE …`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from phalanx.train.gang.gathering import RankConnection


def main(argv: Sequence[str]) -> int:
    """Run a command on the named node; returns its exit code, or 255 when the node is gone."""
    path, node, *command = argv
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    connection = RankConnection(line)
    connection.send({"node": node, "command": " ".join(command)})
    message = connection.receive()
    return 255 if message is None else int(message["code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
