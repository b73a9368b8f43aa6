"""Start of a supervisor with the standard library alone: lock, record, reaper, warm process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.core.contract.job import data_variable
from phalanx.core.gang.placement import omp_num_threads
from phalanx.kit.interpreter import tree_root
from phalanx.launch import accept_guard, linux
from phalanx.launch.command import PythonCommand, parse_python, same_python, sensitive
from phalanx.launch.files import try_lock
from phalanx.launch.identity import (
    DATA_LINKS,
    LOCK_NAME,
    LOG_NAME,
    TAG_VARIABLE,
    ProcessIdentity,
    SupervisorRecord,
    this_process,
)
from phalanx.launch.tree import ReaperProcess, WarmProcess
from phalanx.schemas.wire import ASSIGNMENT_PROTOCOL
from phalanx.supervise import template
from phalanx.supervise.packages.plan import EnvironmentPlan, environment_plan
from phalanx.supervise.portable.image_python import ImagePython, probe, rank_python


@dataclass(slots=True)
class BootContext:
    """What a supervisor has before its program is loaded."""

    data: dict[str, Any]  # the assignment as JSON
    command: PythonCommand | None  # None: the command is no Python program
    reaper: ReaperProcess  # runs
    warm: WarmProcess | None  # None: it is started later, or not at all
    tag_env: Mapping[str, str]  # the variable that marks every process of this supervisor
    #: returns None where the command cannot use a warm process
    start_warm_process: Callable[[ReaperProcess], WarmProcess | None]
    environment: EnvironmentPlan  # of the job's Python packages
    guard: Path | None  # the library that refuses strangers' connections to ranks
    warning: str = ""  # about the Python of the image, for the user; empty: none


def boot(data: dict[str, Any]) -> BootContext | None:
    """Lock the node's folder and start the reaper and the warm process; None when it is locked already."""
    if try_lock(Path(data["node_dir"], LOCK_NAME)) is None:
        return None
    _check_protocol(data)
    linux.become_subreaper()
    tag = secrets.token_hex(8)
    reaper = ReaperProcess.start({TAG_VARIABLE: tag})
    return _boot(data, reaper, None, tag)


def stand_by(
    env: Mapping[str, str],
    imports: Sequence[str],
    stdin: BinaryIO,
    load_program: Callable[[], None],
) -> BootContext | None:
    """Start a warm process and load the program, then wait for an assignment; None when none comes."""
    linux.become_subreaper()
    tag = secrets.token_hex(8)
    reaper = ReaperProcess.start({TAG_VARIABLE: tag})
    warm = _start_warm(reaper, tag, sys.executable, env, imports, cwd="/")
    load_program()
    line = stdin.readline()
    if not line.endswith(b"\n"):
        return None
    data: dict[str, Any] = json.loads(Path(os.fsdecode(line[:-1])).read_bytes())
    node_dir = Path(data["node_dir"])
    if try_lock(node_dir / LOCK_NAME) is None:
        return None
    _check_protocol(data)
    _log_to(node_dir / LOG_NAME)
    return _boot(data, reaper, warm, tag)


def fork_supervisors(
    env: Mapping[str, str], imports: Sequence[str], load_program: Callable[[], None]
) -> BootContext | None:
    """Be the template of a study; returns in each supervisor that it forks, and None at its end."""
    tree = template.serve(env, imports, load_program, lambda folder: _log_to(folder / LOG_NAME))
    if tree is None or try_lock(Path(tree.data["node_dir"], LOCK_NAME)) is None:
        return None
    _check_protocol(tree.data)
    return _boot(tree.data, tree.reaper, tree.warm, tree.tag)


def _num_ranks(data: Mapping[str, Any]) -> int:
    """Number of ranks on this node, as `Assignment.num_ranks`, which is not imported yet."""
    world, role = data["gang"]["world"], data.get("role")
    node = data["node_rank"] if role is None else role["node_rank"]
    by_node = world.get("ranks_by_node")
    found: int = by_node[node] if by_node else world["ranks_per_node"]
    return found


def _boot(
    data: dict[str, Any], reaper: ReaperProcess, standby: WarmProcess | None, tag: str
) -> BootContext:
    if data.get("secrets") or data.get("own_secrets"):
        # Values stay in memory; the assignment on disk holds only their names.
        data["env"] = {**data["env"], **_secrets(data)}
    links = Path(data["node_dir"], DATA_LINKS)
    inputs = {data_variable(name): str(links / name) for name in data.get("data") or {}}
    data["env"] = {**data["env"], **inputs}
    record = SupervisorRecord(this_process(), ProcessIdentity.of(reaper.pid), tag)
    record.write(Path(data["node_dir"]))
    env: dict[str, str] = {"PYTHONUNBUFFERED": "1", **data["env"]}
    threads = omp_num_threads(_num_ranks(data), data["cpus"])
    if threads is not None:
        env.setdefault("OMP_NUM_THREADS", str(threads))
    command = parse_python(data["command"], workdir=data["workdir"], env=env)
    image = _image_python(command, env)
    if image is not None:
        env, data["env"] = image.variables(env), image.variables(data["env"])
    plan = environment_plan(data, command, env)
    command, env = plan.python(command), plan.variables(env)
    data["env"] = plan.variables(data["env"])
    wanted = data.get("warm") or {}

    def start_warm_process(reaper: ReaperProcess) -> WarmProcess | None:
        if command is None or not wanted.get("enabled", True):
            return None
        if image is not None and not image.runs_phalanx:
            return None
        imports = list(wanted.get("imports") or [])
        folder, unbuffered = data["node_dir"], command.unbuffered
        return _start_warm(reaper, tag, command.python, env, imports, folder, unbuffered)

    if standby is not None and not _matches(standby, data, command, env):
        standby.channel.close()
        standby = None
    warm = standby
    if warm is not None and wanted.get("imports"):
        with contextlib.suppress(OSError):
            warm.preload(wanted["imports"])
    if warm is None and not data.get("setup") and plan.ready and not plan.problem:
        # Modules that a build or a setup command installs must not be imported before it has run.
        warm = start_warm_process(reaper)
    guard, _ = accept_guard.library()
    tag_env = {TAG_VARIABLE: tag}
    warning = "" if image is None else image.warning
    return BootContext(
        data, command, reaper, warm, tag_env, start_warm_process, plan, guard, warning
    )


def _image_python(command: PythonCommand | None, env: Mapping[str, str]) -> ImagePython | None:
    """The Python of the image; None where this supervisor shares its Python with the ranks.

    Also None where the image has no Python: programs of other kinds need none.
    """
    tree, python = tree_root(), rank_python(command, env)
    return None if tree is None or python is None else probe(python, env, tree)


def _check_protocol(data: Mapping[str, Any]) -> None:
    """Leave with a message where the control plane is of a release that this one cannot read."""
    if data.get("protocol") != ASSIGNMENT_PROTOCOL:
        sys.exit(
            f"the control plane writes assignment protocol {data.get('protocol')}, this supervisor reads "
            f"{ASSIGNMENT_PROTOCOL}: install the same release of Phalanx for both"
        )


def _secrets(data: dict[str, Any]) -> dict[str, str]:
    from phalanx.errors import NotFound
    from phalanx.supervise.secret_values import secret_values

    try:
        return secret_values(data)
    except NotFound as error:
        sys.exit(error.message)


def _matches(
    standby: WarmProcess,
    data: dict[str, Any],
    command: PythonCommand | None,
    env: Mapping[str, str],
) -> bool:
    """Whether the warm process of a standby equals the one that this job would start."""
    return (
        command is not None
        and not data.get("setup")
        and bool((data.get("warm") or {}).get("enabled", True))
        and same_python(standby.python, command.python)
        and dict(standby.sensitive_env) == sensitive(env)
    )


def _start_warm(
    reaper: ReaperProcess,
    tag: str,
    python: str,
    env: Mapping[str, str],
    imports: Sequence[str],
    cwd: str,
    unbuffered: bool = False,
) -> WarmProcess:
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return WarmProcess.start(
            reaper,
            python=shutil.which(python) or python,
            unbuffered=unbuffered,
            imports=imports,
            env={**accept_guard.preloaded(env, accept_guard.library()[0]), TAG_VARIABLE: tag},
            sensitive_env=sensitive(env),
            cwd=cwd,
            stdio=(stdin, 2, 2),
        )
    finally:
        os.close(stdin)


def _log_to(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
