"""Turn the flags of `phalanx run` into a job spec and the folder to archive."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.cli.client.invocation import Invocation
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.schemas.spec.document import read_text, script_defaults, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.python import short_form


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The flags of `run` that set keys of the spec; None or empty: not given.

    `defaults` are entries of a module's spec that the flags override.
    """

    #: a Python module to run instead of a script
    module: str | None = None
    #: `--ranks`: ranks in all, or on each node where `nodes` says how many
    ranks_per_node: int | None = None
    #: a number, or a range such as `2..4`
    nodes: int | str | None = None
    #: name of the job
    name: str | None = None
    #: project of the job
    project: str | None = None
    #: words to find the run by
    tags: Sequence[str] = ()
    #: group of runs that belong together
    group: str | None = None
    #: variables to set in the ranks
    env: Mapping[str, str] | None = None
    #: `10m`, `500 steps`, `1 epoch` or `auto`
    checkpoint_every: str | None = None
    #: folder with checkpoints that the script writes itself
    checkpoint_directory: str | None = None
    #: begin with what that folder holds
    continues: bool = False
    #: how the job ends without its last checkpoint: `succeed` or `fail`
    on_final_failure: str | None = None
    #: checkpoint to begin from, as in `checkpoint.resume_from`; a path may be relative
    resume_from: str | None = None
    #: how the learning rate follows the ranks of the first start: `none`, `linear` or `sqrt`
    scale_lr: str | None = None
    #: framework of the ranks, such as `torch`
    framework: str | None = None
    #: patterns that read metrics from output lines
    metrics: Sequence[str] = ()
    #: a duration such as `12h`
    max_duration: str | None = None
    #: 0 to 100, or the name of a priority
    priority: int | str | None = None
    #: pools that the job may run in, in order of preference
    pool: Sequence[str] = ()
    #: start every rank without the warm process
    cold: bool = False
    #: modules that the warm process imports
    warm_imports: Sequence[str] = ()
    #: spec keys with lower precedence than the flags
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: path of a requirements file
    requirements: str | None = None
    #: requirements of single packages
    packages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The spec, and the folder to archive; None when no code is sent."""

    spec: JobSpec
    root: Path | None


def plan_run(words: Sequence[str], flags: RunFlags, invocation: Invocation) -> RunPlan:
    """Build the submission of `phalanx run`.

    Raises UserError for a missing command, SpecInvalid for faults in the flags or the script's defaults.
    """
    root, command, name, defaults = _command(list(words), flags, invocation)
    for key in ("run", "workdir"):
        if key in defaults:
            raise SpecInvalid([Problem(f"tool.phalanx.{key}", "`phalanx run` sets it; remove it")])
    data = _merge(defaults, flags)
    if flags.requirements is not None or flags.packages:
        data["python"] = _python(data.get("python"), flags, root, invocation)
    data.setdefault("name", name)
    data["run"] = command
    return RunPlan(validate_spec(data), root)


def _command(
    words: list[str], flags: RunFlags, invocation: Invocation
) -> tuple[Path | None, list[str], str, dict[str, Any]]:
    if flags.module is not None:
        name = flags.module.rpartition(".")[2] or flags.module
        command = [invocation.python, "-u", "-m", flags.module, *words]
        return _usual_root(invocation), command, _clean(name), dict(flags.defaults)
    if not words:
        raise UserError(
            "nothing to run", "write: phalanx run train.py, or: phalanx run -n 2 -- ./program"
        )
    first = words[0]
    if first.endswith(".py"):
        return _script(first, words[1:], invocation)
    path = invocation.env.get("PATH")
    here = str(invocation.cwd / first) if "/" in first else first
    if shutil.which(here, path=path) is None:
        hint = "a Python script ends in .py, a module needs -m, a program must be on PATH"
        raise UserError(f"{first}: {_why_not(Path(invocation.cwd / first), first)}", hint)
    return _usual_root(invocation), words, _clean(Path(first).name), {}


def _why_not(path: Path, word: str) -> str:
    if "/" not in word:
        return "no such command"
    return "is not executable" if path.exists() else "no such file"


def _script(
    word: str, args: list[str], invocation: Invocation
) -> tuple[Path, list[str], str, dict[str, Any]]:
    path = Path(invocation.cwd, word)
    if path.is_dir():
        raise UserError(f"{word}: is a folder, not a script")
    if not path.exists():
        raise UserError(f"{word}: no such file", f"looked in {invocation.cwd}")
    text = read_text(path)
    _check_syntax(text, word)
    defaults = script_defaults(text, word)
    root, relative = _root_of(path, invocation)
    command = [invocation.python, "-u", relative, *args]
    return root, command, _clean(path.stem), defaults


def _check_syntax(text: str, word: str) -> None:
    """Refuse a script with a syntax error before a job is submitted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, word, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        said = f"{word}, line {error.lineno}: {error.msg}"
        raise UserError(said, f"the line reads: {line}" if line else None) from None
    except ValueError as error:
        raise UserError(f"{word}: {error}") from None


def _root_of(path: Path, invocation: Invocation) -> tuple[Path, str]:
    """The folder to archive, and the script's path in it.

    It is the current directory, since imports and data files are usually relative to it; the script's
    own folder when the script is elsewhere or the current directory is not a project folder.
    """
    root = _usual_root(invocation)
    absolute = Path(invocation.cwd, path)
    if root is not None and absolute.parent.resolve().is_relative_to(root.resolve()):
        inside = absolute.parent.resolve().relative_to(root.resolve()) / absolute.name
        return root, str(inside)
    return absolute.parent, absolute.name


def _usual_root(invocation: Invocation) -> Path | None:
    """The current directory; None when it must not be sent as a whole, such as a home directory."""
    cwd = invocation.cwd.resolve()
    never = {Path("/"), Path("/tmp"), Path("/root"), Path("/home")}
    if invocation.env.get("HOME"):
        never.add(Path(invocation.env["HOME"]).resolve())
    return None if cwd in never else invocation.cwd


def _clean(name: str) -> str:
    """A job name from a file name; characters that are not allowed become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "job"


def _merge(defaults: Mapping[str, Any], flags: RunFlags) -> dict[str, Any]:
    """The defaults of the script with the flags over them."""
    data: dict[str, Any] = dict(defaults)
    resources = dict(_section(data, "resources"))
    if flags.nodes is not None:
        resources["nodes"] = flags.nodes
    if flags.ranks_per_node is not None:
        resources |= _ranks(flags.ranks_per_node, resources)
    if resources:
        data["resources"] = resources
    for key in ("name", "project", "group", "max_duration", "priority", "framework"):
        value = getattr(flags, key)
        if value is not None:
            data[key] = value
    for key in ("pool", "metrics", "tags"):
        if value := getattr(flags, key):
            data[key] = list(value)
    data |= _sections(data, flags)
    if flags.env:
        data["env"] = {**_section(data, "env"), **flags.env}
    if flags.cold:
        data["warm"] = False
    elif flags.warm_imports:
        warm = data.get("warm")
        known = warm if isinstance(warm, dict) else {}
        imports = [*known.get("imports", []), *flags.warm_imports]
        data["warm"] = {**known, "imports": imports}
    return data


def _sections(data: Mapping[str, Any], flags: RunFlags) -> dict[str, dict[str, Any]]:
    """The sections `checkpoint` and `training` with the flags over them, where flags set any."""
    saving = {
        "every": flags.checkpoint_every,
        "directory": flags.checkpoint_directory,
        "continue": flags.continues or None,
        "on_final_failure": flags.on_final_failure,
        "resume_from": flags.resume_from,
    }
    found = {}
    for section, values in (("checkpoint", saving), ("training", {"scale_lr": flags.scale_lr})):
        if given := {key: value for key, value in values.items() if value is not None}:
            found[section] = {**_section(data, section), **given}
    return found


def _ranks(num: int, resources: dict[str, Any]) -> dict[str, int]:
    """The resources for so many ranks: on each node where nodes are given, else in all."""
    per_rank = resources.get("slots_per_rank", 1)
    slots = num * (per_rank if isinstance(per_rank, int) else 1)
    if "nodes" in resources or num == 1:
        return {"slots_per_node": slots}
    resources.pop("slots_per_node", None)
    return {"accelerators": slots}


def _python(
    known: Any, flags: RunFlags, root: Path | None, invocation: Invocation
) -> dict[str, Any]:
    """The section `python` with the additions of the flags."""
    section = short_form(known or {})
    section = dict(section) if isinstance(section, dict) else {}
    if flags.requirements is not None:
        path = Path(invocation.cwd, flags.requirements).resolve()
        if not path.is_file():
            said = f"--requirements {flags.requirements}: no such file"
            raise UserError(said, f"looked for {path}")
        if root is None or not path.is_relative_to(root.resolve()):
            said = f"--requirements {flags.requirements}: is outside the folder that is sent with the job"
            raise UserError(
                said, f"that folder is {root}" if root else "the command sends no folder"
            )
        section["requirements"] = str(path.relative_to(root.resolve()))
    section["packages"] = [*section.get("packages", []), *flags.packages]
    return section


def _section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A section of the defaults. Raises SpecInvalid when it is not a mapping."""
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise SpecInvalid([Problem(key, "must be a mapping of keys to values", repr(value))])
    return value


def split_env(entries: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split `--env K=V` into values to set and `--env K` into names to forward.

    Raises UserError for an entry without a name.
    """
    values: dict[str, str] = {}
    names: list[str] = []
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name:
            raise UserError(
                f"--env {entry}: there is no name", "write --env NAME or --env NAME=VALUE"
            )
        if equals:
            values[name] = value
        else:
            names.append(name)
    return values, names
