"""A folder for as long as a process lives, that does not stay behind when it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(where: Path, prefix: str) -> Iterator[Path]:
    """A new folder below `where`, with a short name. Those of processes that are gone are removed first.

    Raises OSError.
    """
    for left in where.glob(f"{prefix}*-*"):
        # A process that was killed could not clear up after itself.
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
