"""The Python that ranks use where the supervisor runs in a tree: that of the image, if it has one.

The supervisor's own Python is not for ranks: the packages of the image belong to the Python of the image.
From 3.11 on it imports the parts of Phalanx that ranks need from a folder of the tree. An older one runs
scripts without them, and without the warm process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.launch.command import PythonCommand

RANKS = "ranks"
"""The folder of a tree with the parts of Phalanx that ranks import."""
LEAST = (3, 11)
_ANSWER_S = 60.0
# Python 2 must understand it as well.
_QUESTION = "import sys; sys.stdout.write('%d.%d.%d' % sys.version_info[:3])"
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class ImagePython:
    """A Python of the image. `version` is empty where it could not be run, and `problem` says why."""

    path: str
    tree: Path  # of the supervisor
    version: tuple[int, ...] = ()
    problem: str = ""

    @property
    def runs_phalanx(self) -> bool:
        """Whether `phalanx.train` works with it."""
        return self.version >= LEAST

    @property
    def warning(self) -> str:
        """What its user must know; empty: nothing."""
        if self.runs_phalanx:
            return ""
        least = ".".join(map(str, LEAST))
        if self.problem:
            return f"{self.path} of the image could not be asked for its version: {self.problem}"
        told = ".".join(map(str, self.version))
        return (
            f"{self.path} of the image is Python {told}: ranks start as fresh interpreters, and "
            f"`import phalanx.train` needs Python {least}"
        )

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with the parts of Phalanx for ranks, behind the folders that the job itself names."""
        if not self.runs_phalanx:
            return dict(env)
        folders = [env.get("PYTHONPATH", ""), str(self.tree / RANKS)]
        return {**env, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def phalanx_python(command: PythonCommand | None, env: Mapping[str, str], tree: Path) -> str | None:
    """The interpreter of `rank_python`, where `variables` has given it the parts of Phalanx; else None."""
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    return rank_python(command, env) if str(tree / RANKS) in folders else None


def rank_python(command: PythonCommand | None, env: Mapping[str, str]) -> str | None:
    """The interpreter that ranks run, or would find first; None: there is none."""
    if command is not None:
        return command.python
    path = env.get("PATH", "")
    return shutil.which("python", path=path) or shutil.which("python3", path=path)


def probe(python: str, env: Mapping[str, str], tree: Path) -> ImagePython:
    """Ask an interpreter for its version, with the environment of the ranks."""
    words = [python, "-S", "-c", _QUESTION]
    try:
        done = subprocess.run(
            words,
            env=dict(env),
            cwd="/",
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_S,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip()[-_LONGEST:] or f"exit code {done.returncode}")
        return ImagePython(python, tree, tuple(map(int, done.stdout.split(".")[:3])))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return ImagePython(python, tree, problem=str(error)[:_LONGEST])
