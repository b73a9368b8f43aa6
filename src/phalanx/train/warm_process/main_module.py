"""Running of a script or module inside the existing `__main__`, as a fresh interpreter would.

Classes of the script then belong to the real `__main__`: they pickle, and data workers of every start
method find the script by `__main__.__file__` or `__main__.__spec__`.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import time
import traceback
from importlib.machinery import ModuleSpec
from types import CodeType, TracebackType
from typing import Any, NoReturn


def run_script(path: str) -> None:
    """Run a file as `python path` does. A missing file ends the process with code 2."""
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        text = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        _refuse(text, type(error).__name__, 2)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    _reset(__file__=path, __spec__=None, __package__=None, __loader__=loader, __cached__=None)
    _run(lambda: compile(source, path, "exec", dont_inherit=True))


def run_module(name: str, workdir: str) -> None:
    """Run a module as `python -m name` does, found from `workdir` on."""
    _set_first_path(workdir)
    sys.argv[0] = "-m"
    try:
        spec = _find(name)
        code = None if spec.loader is None else spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        _refuse(
            f"Error while finding module specification for {name!r} ({error})", "ImportError", 1
        )
    except SyntaxError as error:
        _fail(error)
    if code is None:
        _refuse(f"No code object available for {name}", "ImportError", 1)
    sys.argv[0] = spec.origin or name
    origin = {"__file__": spec.origin, "__loader__": spec.loader, "__cached__": spec.cached}
    _reset(__spec__=spec, __package__=spec.parent, **origin)
    _run(lambda: code)


def _find(name: str) -> ModuleSpec:
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(f"No module named {name}")
    if spec.submodule_search_locations is not None:
        inner = importlib.util.find_spec(f"{name}.__main__")
        if inner is None:
            raise ImportError(f"{name} is a package and cannot be directly executed")
        return inner
    return spec


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _reset(**facts: Any) -> None:
    names = sys.modules["__main__"].__dict__
    names.clear()
    names |= {"__name__": "__main__", "__doc__": None, "__annotations__": {}, **facts}
    names["__builtins__"] = builtins


def _run(load: Any) -> None:
    code: CodeType
    try:
        code = load()
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _fail(error)


def _fail(error: BaseException) -> NoReturn:
    """Handle an uncaught exception as the interpreter does, without this module's frames."""
    ours = _foreign(error.__traceback__)
    error = error.with_traceback(ours)
    _write_error_file(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    sys.excepthook(type(error), error, ours)
    # An interpreter ends with 130 or the signal itself on Ctrl-C, which does not happen here.
    raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _foreign(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return tb


def _refuse(text: str, kind: str, code: int) -> NoReturn:
    _write_error_file(kind, text, "")
    print(f"{sys.executable}: {text}", file=sys.stderr)  # noqa: T201 - as the interpreter does
    raise SystemExit(code)


def _write_error_file(kind: str, message: str, text: str) -> None:
    """Write an error to `TORCHELASTIC_ERROR_FILE`, unless the file exists."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")  # noqa: TID251 - stands in for the interpreter
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time())), "exc_type": kind}  # noqa: TID251
    body = {"message": {"message": f"{kind}: {message}", "extraInfo": extra}}
    try:
        # A message may quote a secret variable: the file is for its owner alone.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(opened, "w") as file:
            json.dump(body, file)
    except OSError:
        pass
