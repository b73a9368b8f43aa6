"""Commands: which ones a warm Python process can run, and how each is started cold."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

_SHELL_WORDS = frozenset("|&;<>()$`\\*?[]#~{}!\n")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SENSITIVE = re.compile(
    r"(ATEN|DNNL|GOMP|KMP|LC|LD|MALLOC|MKL|OMP|ONEDNN|OPENBLAS|THP)_|GLIBC_TUNABLES|LANG|PYTHON|TORCH"
)


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`python [-u] script args` or `python [-u] -m module args`; `python` is an absolute path.

    `target` is the script's absolute path or the module's name.
    """

    python: str
    unbuffered: bool
    kind: Literal["script", "module"]
    target: str
    args: tuple[str, ...]
    workdir: str

    def run_by(self, python: str) -> PythonCommand:
        """The same command under another interpreter."""
        return replace(self, python=python)

    def argv(self) -> list[str]:
        """The argument vector of a cold start. Modules come from the work directory, not the cwd."""
        head = [self.python, *(["-u"] if self.unbuffered else [])]
        if self.kind == "script":
            return [*head, self.target, *self.args]
        return [*head, "-P", "-m", self.target, *self.args]

    def cold_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` for a cold start."""
        if self.kind == "script":
            return dict(env)
        path = env.get("PYTHONPATH")
        return {**env, "PYTHONPATH": f"{self.workdir}:{path}" if path else self.workdir}


def words(command: Sequence[str] | str) -> list[str] | None:
    """The words of a command that needs no shell; None when it does."""
    if not isinstance(command, str):
        return list(command)
    if _SHELL_WORDS.intersection(command):
        return None
    try:
        return shlex.split(command)
    except ValueError:
        return None


def parse_python(
    command: Sequence[str] | str, *, workdir: str, env: Mapping[str, str]
) -> PythonCommand | None:
    """The command as one that a warm process can run, or None when it is anything else.

    The interpreter is looked up in the PATH of `env`.
    """
    rest = words(command)
    if not rest or not _PYTHON.fullmatch(Path(rest[0]).name):
        return None
    python = shutil.which(rest[0], path=env.get("PATH", ""))
    if python is None or not python.startswith("/"):
        return None
    rest = rest[1:]
    unbuffered = False
    while rest and rest[0] == "-u":
        unbuffered, rest = True, rest[1:]
    if len(rest) >= 2 and rest[0] == "-m" and not rest[1].startswith("-"):
        return PythonCommand(python, unbuffered, "module", rest[1], tuple(rest[2:]), workdir)
    if not rest or rest[0].startswith("-"):
        return None
    script = Path(workdir, rest[0])
    if script.is_dir() or script.suffix in (".pyc", ".pyz", ".zip"):
        return None
    return PythonCommand(python, unbuffered, "script", str(script), tuple(rest[1:]), workdir)


def cold_argv(command: Sequence[str] | str, *, workdir: str, env: Mapping[str, str]) -> list[str]:
    """The argument vector of any command, its program found; raises FileNotFoundError otherwise."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    program = command[0] if command else ""
    if "/" in program:
        program = str(Path(workdir, program))
    found = shutil.which(program, path=env.get("PATH", ""))
    if found is None:
        raise FileNotFoundError(2, "No such file or directory, or not executable", program)
    return [found, *command[1:]]


def ready(
    command: Sequence[str] | str, *, workdir: str, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The argument vector and environment of a cold start of any command, its script or program found.

    Raises FileNotFoundError.
    """
    python = parse_python(command, workdir=workdir, env=env)
    if python is not None:
        return python.argv(), python.cold_env(env)
    return cold_argv(command, workdir=workdir, env=env), dict(env)


def sensitive(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that are read only when a process starts, so that a fork cannot change their effect."""
    return {
        name: value
        for name, value in env.items()
        if _SENSITIVE.match(name) and not name.startswith("TORCHELASTIC_")
    }


def same_python(one: str, other: str) -> bool:
    """Whether two paths name one interpreter in one environment (`bin/python`, `bin/python3`)."""
    first, second = Path(one), Path(other)
    return first.parent == second.parent and first.resolve() == second.resolve()
