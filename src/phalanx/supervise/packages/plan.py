"""Find the Python environment that a job needs, before the supervisor's program is loaded."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.kit.interpreter import tree_root
from phalanx.launch.command import PythonCommand
from phalanx.supervise.packages.environments import EnvironmentStore

# The result of a build, a file beside its request.
VERDICT = "packages.verdict.json"


@dataclass(slots=True)
class EnvironmentPlan:
    """The Python environment of one job on this node. `problem`: why it cannot be built; empty: none.

    `request` is None where the job asks for no packages. `held` keeps the environment from removal.
    """

    request: dict[str, Any] | None = None
    problem: str = ""
    held: int | None = field(default=None, repr=False)

    @property
    def ready(self) -> bool:
        """Whether ranks may start."""
        return self.request is None or self.held is not None

    @property
    def path(self) -> Path | None:
        """The path of the environment, also before it is built; None: the job needs none."""
        if self.request is None:
            return None
        return EnvironmentStore(Path(self.request["root"])).path(self.request["digest"])

    def hold(self) -> bool:
        """Protect the environment from removal; returns whether ranks may start."""
        if self.request is not None and self.held is None:
            store = EnvironmentStore(Path(self.request["root"]))
            # The builder reports a folder that cannot be read.
            with contextlib.suppress(OSError):
                self.held = store.hold(self.request["digest"])
        return self.ready

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with the environment's programs first in PATH."""
        found = dict(env)
        if self.path is not None:
            own = str(self.path / "bin")
            found["VIRTUAL_ENV"] = str(self.path)
            found["PATH"] = os.pathsep.join([own, env.get("PATH", os.defpath)])
            found.pop("PYTHONHOME", None)
        return found

    def python(self, command: PythonCommand | None) -> PythonCommand | None:
        """The command with the environment's interpreter in place of the one that it names."""
        if command is None or self.path is None:
            return command
        return command.run_by(str(self.path / "bin" / "python"))


def environment_plan(
    data: Mapping[str, Any], command: PythonCommand | None, env: Mapping[str, str]
) -> EnvironmentPlan:
    """The plan of an assignment. The environment is laid over the interpreter that the job would use."""
    packages: Mapping[str, Any] | None = data.get("python")
    if packages is None:
        return EnvironmentPlan()
    want, root = packages["wanted"], packages["root"]
    # Imported late: a job without packages must not wait for these imports.
    from phalanx.supervise.packages import interpreter, requirements

    python = command.python if command is not None else _found(env)
    if python is None:
        return EnvironmentPlan(
            problem="`python` needs a Python in the image, and its PATH has none"
        )
    workdir = Path(data["workdir"])
    try:
        own = os.path.realpath(python) == os.path.realpath(sys.executable)
        same = own and Path(python).parent == Path(sys.executable).parent
        base = interpreter.describe() if same else interpreter.ask(python)
        digest = requirements.digest(workdir, want, data.get("code"), base, python)
    except (requirements.InvalidRequirements, interpreter.InterpreterUnusable) as error:
        return EnvironmentPlan(problem=str(error))
    request = {"wanted": dict(want), "root": root, "digest": digest, "python": python}
    plan = EnvironmentPlan({**request, "base": base, "workdir": str(workdir)})
    plan.hold()
    return plan


def _found(env: Mapping[str, str]) -> str | None:
    for name in ("python", "python3"):
        if (found := shutil.which(name, path=env.get("PATH", ""))) is not None:
            return found
    # The Python of a tree is no base: it belongs to the supervisor.
    return sys.executable if tree_root() is None else None
