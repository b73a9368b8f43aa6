"""The library that refuses connections of strangers to ranks, compiled once per user and machine, or image.

Frameworks such as gloo, gRPC and Open MPI accept every connection. `accept_guard.c` is loaded into
the processes of a gang and closes such connections first. It needs a C compiler once; without one, or where
the kernel does not tell the owner of a socket, ranks run without it and `phalanx doctor` says so.

`python -m phalanx.launch.accept_guard` compiles it into the installation, for images without a compiler.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.kit.interpreter import own_python
from phalanx.launch.files import private_folder, write_file

_SOURCE = Path(__file__).with_name("accept_guard.c")
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_S = 60.0
_PRELOAD = "LD_PRELOAD"
PORTS_VARIABLE = "PHALANX_ACCEPT_PORTS"
# A connection of this process to itself is permitted, and the answer of the kernel is needed for that.
_SELF_TEST = """
import socket
server = socket.create_server(("127.0.0.1", 0))
server.settimeout(10)
client = socket.create_connection(server.getsockname())
server.accept()
"""


def library(
    folders: Iterable[Path] | None = None, installation: Path = _SOURCE.parent
) -> tuple[Path | None, str]:
    """The compiled library, and why there is none. Compiles it at the first call on a machine.

    One that was compiled into the installation is used where it is.
    """
    installed = installation / _name()
    if installed.is_file():
        said = _tried_once(installed)
        return (None, said) if said else (installed, "")
    said = "no folder for it can be written"
    for folder in _folders() if folders is None else folders:
        try:
            private_folder(folder)
            path = folder / _name()
            failed = path.with_suffix(".failed")
            if path.is_file():
                return path, ""
            if failed.is_file():
                return None, failed.read_text()
            said = _build(path)
            if not said:
                return path, ""
            write_file(failed, said.encode())
            return None, said
        except OSError as error:
            said = str(error)
    return None, said


def forget_failure() -> None:
    """Make the next call of `library` compile again."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            for one in folder.glob("accept-guard-*.failed"):
                one.unlink()


def _folders() -> list[Path]:
    own = os.environ  # noqa: TID251 - where this user keeps caches
    found = []
    if cache := own.get("XDG_CACHE_HOME"):
        found.append(Path(cache, "phalanx"))
    if home := own.get("HOME"):
        found.append(Path(home, ".cache", "phalanx"))
    return [*found, Path(tempfile.gettempdir(), f"phalanx-{os.geteuid()}")]


def compile_into(installation: Path = _SOURCE.parent) -> Path:
    """Compile the library into an installation, where every user finds it. Raises OSError.

    It is tried where it is used: the kernel of the machine that builds an image may be another one.
    """
    path = installation / _name()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        if said := _compile(temporary):
            raise OSError(said)
        temporary.chmod(0o644)
        os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _name() -> str:
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    return f"accept-guard-{digest}.so"


def _build(path: Path) -> str:
    """Compile and try the library; returns why it cannot be used, empty where it can."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        if said := _compile(temporary) or _tried(temporary):
            return said
        os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return ""


def _compile(path: Path) -> str:
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return "there is no C compiler"
    words = [compiler, "-shared", "-fPIC", "-O2", "-o", str(path), str(_SOURCE), "-ldl"]
    said = _run(words, {})
    return f"it cannot be compiled: {said}" if said else ""


def _tried(path: Path) -> str:
    """Why a compiled library cannot be used on this machine; empty where it can."""
    env = preloaded({"PHALANX_ACCEPT": "all"}, path)
    said = _run(own_python("-I", "-S", "-c", _SELF_TEST), env)
    return f"the kernel does not tell the owner of a connection: {said}" if said else ""


_tried_once = functools.lru_cache(maxsize=4)(_tried)  # supervisors ask twice


def _run(words: list[str], more: Mapping[str, str]) -> str:
    """Run a command; returns the last line of its errors, empty where it succeeded."""
    own = os.environ  # noqa: TID251 - the compiler needs this process's PATH
    try:
        done = subprocess.run(
            words,
            env={**own, **more},
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def preloaded(env: Mapping[str, str], path: Path | None) -> dict[str, str]:
    """`env` with the library in every process that is started with it, beside those of the user."""
    if path is None:
        return dict(env)
    before = env.get(_PRELOAD)
    return {**env, _PRELOAD: f"{path}:{before}" if before else str(path)}


def not_preloaded(env: Mapping[str, str]) -> dict[str, str]:
    """`env` as it was before `preloaded`."""
    left = [one for one in env.get(_PRELOAD, "").split(":") if one and "accept-guard-" not in one]
    rest = {name: value for name, value in env.items() if name != _PRELOAD}
    return {**rest, _PRELOAD: ":".join(left)} if left else rest


def is_loaded(env: Mapping[str, str]) -> bool:
    """Whether processes that are started with `env` have the library, and use it."""
    return "accept-guard-" in env.get(_PRELOAD, "") and env.get("PHALANX_ACCEPT") in ("gang", "all")


def variables(mode: str, ports: Iterable[int], peers: Iterable[str]) -> dict[str, str]:
    """The variables that tell the library what to guard; none without a mode."""
    if not mode:
        return {}
    return {
        "PHALANX_ACCEPT": mode,
        PORTS_VARIABLE: ",".join(str(port) for port in sorted(set(ports)) if port),
        "PHALANX_ACCEPT_PEERS": ",".join(sorted(set(peers))),
    }


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{compile_into()}\n")
    except OSError as error:
        sys.exit(f"the accept guard is not in the installation: {error}")
