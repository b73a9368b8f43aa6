"""The end of a forked rank: what an interpreter does at its end, without taking torch apart.

Destroying every module of a forked process copies most of its shared memory first: 0.1 to 0.7 s. A rank
waits for its threads, runs its exit functions, drops what its script made, closes its files, and leaves.
"""

from __future__ import annotations

import _io
import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
from collections.abc import Collection
from typing import Any, NoReturn

# Libraries that must be told of the interpreter's end in a way that only the interpreter has.
_NEED_INTERPRETER_END = ("mpi4py.MPI",)
_FLUSH_FAILED = 120


def leave(code: object, before: Collection[str]) -> NoReturn:
    """End this process with the code of a `SystemExit`; `before` are the modules that were forked."""
    if any(name in sys.modules for name in _NEED_INTERPRETER_END):
        raise SystemExit(code)
    number = _number_of(code)
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls first
    atexit._run_exitfuncs()
    if threading.active_count() == 1:
        # A thread that still runs may use them.
        _drop_modules(before)
    _close_files()
    if not _flush_output() and number == 0:
        number = _FLUSH_FAILED
    ctypes.CDLL(None).fflush(None)
    os._exit(number & 0xFF)


def _number_of(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _drop_modules(before: Collection[str]) -> None:
    """Drop the names of the script and its modules, so that their objects end as they expect."""
    own = [name for name in list(sys.modules) if name not in before]
    for name in ("__main__", *reversed(own)):
        names: dict[str, Any] = getattr(sys.modules.get(name), "__dict__", {})
        # As the interpreter does: the names stay for code that runs while others end.
        for key in list(names):
            if key != "__builtins__":
                names[key] = None
    gc.collect()


def _close_files() -> None:
    """Close files that are still open, those that wrap another one first, so that nothing is lost."""
    # By type alone, and types of the interpreter, not the abstract class above them: objects that are asked
    # for their class may raise, such as weak proxies of what is gone, and classes that are their own class.
    kinds = (io.TextIOWrapper, _io._BufferedIOBase)
    files: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    standard = {id(one) for stream in streams for one in (stream, getattr(stream, "buffer", None))}
    plain = (io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.BytesIO)
    files.sort(
        key=lambda one: 1 if isinstance(one, io.TextIOWrapper) else 2 * isinstance(one, plain)
    )
    for one in files:
        if id(one) not in standard:
            with contextlib.suppress(Exception):
                one.close()


def _flush_output() -> bool:
    """Flush standard output and error; returns whether all was written."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            written = False
    return written
