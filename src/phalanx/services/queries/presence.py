"""Which committed checkpoints are still there, where this machine can tell.

Files may be deleted, and disks go away, without a report. A network disk that is gone may never answer: the
folder is listed by a thread that the caller does not wait for.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable
from pathlib import Path, PurePath

from phalanx.store import supervisors
from phalanx.store.database import Tx

ANSWER_S = 1.0
_busy: set[Path] = set()
_lock = threading.Lock()


def on_this_machine(tx: Tx, job: int, attempt: int) -> bool:
    """Whether a supervisor of an attempt ran here, so that this machine sees the checkpoint folder."""
    here = socket.gethostname()
    return any(row.host == here for row in supervisors.of_attempt(tx, job, attempt))


def missing(folder: Path, paths: Iterable[str]) -> frozenset[str]:
    """Those of `paths`, which lie directly in `folder`, that are not there; empty if it does not answer."""
    inside = [path for path in paths if PurePath(path).parent == folder]
    names = _names(folder) if inside else None
    if names is None:
        return frozenset()
    return frozenset(path for path in inside if PurePath(path).name not in names)


def _names(folder: Path) -> frozenset[str] | None:
    """The names in a folder, none where it does not exist; None where it cannot be read in time."""
    found: list[frozenset[str]] = []
    with _lock:
        if folder in _busy:
            return None  # an earlier request still waits for it
        _busy.add(folder)

    def look() -> None:
        try:
            found.append(frozenset(os.listdir(folder)))
        except (FileNotFoundError, NotADirectoryError):
            found.append(frozenset())
        except OSError:
            pass
        finally:
            with _lock:
                _busy.discard(folder)

    thread = threading.Thread(target=look, name="phalanx-presence", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return found[0] if found else None
