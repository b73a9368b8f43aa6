"""The error file of torchelastic that a rank writes when its script raises."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from phalanx.kit.clock import SystemClock


def install(path: Path | None) -> None:
    """Write the error file on an uncaught exception, then call the previous hook."""
    if path is None:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            write(path, error)
        before(kind, error, trace)

    sys.excepthook = hook


def write(path: Path | None, error: BaseException) -> None:
    """Write the file unless it exists: the first failure is the cause. Never raises."""
    if path is None:
        return
    stack = "".join(traceback.format_exception(error))
    body = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": stack,
                "timestamp": str(SystemClock().now() // 1_000_000),
            },
        }
    }
    with contextlib.suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(body, file)
