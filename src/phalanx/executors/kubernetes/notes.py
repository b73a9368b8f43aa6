"""Notes in the home about pods: what must be known after their objects are gone from the cluster."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.protocol import SupervisorRef
from phalanx.launch.files import write_file
from phalanx.schemas.home import HomeLayout

_NAME = "kubernetes.json"


@dataclass(frozen=True, slots=True)
class PodNote:
    """One pod. It is written before the pod is created, and again before its finalizer is removed."""

    namespace: str  # of the pod
    anchor: str  # name of the ConfigMap of its attempt
    name: str  # of the pod
    node: str  # name of its node in the cluster
    nodes: int  # pods of the attempt
    uid: str = ""  # empty: not confirmed yet
    boot_id: str = ""  # of its node, when the pod was confirmed
    gone: bool = False  # its processes are proven to be gone
    cleaned: bool = False  # nothing of it is left in the cluster
    record: str = ""  # its exit record, as it left it
    message: str = ""  # why it ended
    failed: str = ""  # why it was given up before it began; empty: it was not
    cause: str = ""  # the cause of its end, where the cluster tells one
    image: str = ""  # that its ranks run in, with its digest; empty: not known yet


class PodNotes:
    """The notes of a home."""

    def __init__(self, home: HomeLayout) -> None:
        self._home = home

    def read(self, ref: SupervisorRef) -> PodNote | None:
        """The note of a supervisor; None where none was ever begun. Raises ExecutorUnavailable."""
        path = self._home.node_dir(ref.job, ref.attempt, ref.node_rank) / _NAME
        try:
            return PodNote(**json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ExecutorUnavailable(f"the note of {ref} cannot be read: {error}") from error

    def write(self, ref: SupervisorRef, note: PodNote) -> None:
        """Replace the note of a supervisor. Raises OSError."""
        path = self._home.node_dir(ref.job, ref.attempt, ref.node_rank) / _NAME
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, json.dumps(asdict(note)).encode())
