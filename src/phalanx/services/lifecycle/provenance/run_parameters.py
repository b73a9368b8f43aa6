"""The parameters of a new run: of its arguments, its configuration files and its study."""

from __future__ import annotations

import json
import posixpath
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from phalanx.core.contract.job import JobContract
from phalanx.core.contract.trial import Param
from phalanx.core.experiments.parameters import (
    ParamSource,
    RunParam,
    config_files,
    flattened,
    params_of,
    parsed,
    read_arguments,
)
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.units import format_size
from phalanx.launch.archives import read_members
from phalanx.schemas.spec.job import JobSpec
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform

MAX_FILE_BYTES = 256 << 10
"""Size of a configuration file; larger ones are refused where the spec names them, and else left out."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def params_of_job(
    platform: Platform, spec: JobSpec, contract: JobContract, digest: str | None
) -> tuple[RunParam, ...]:
    """The parameters of a new job; `digest` is that of its code.

    Files that only the command names are left out where they are not in the work directory or hold no
    mapping. Raises SpecInvalid for a file of the spec that cannot be read.
    """
    words = next((one.command.arguments for one in contract.roles if one.leads), ())
    given = [posixpath.normpath(name) for name in spec.config_files]
    named = [posixpath.normpath(name) for name in config_files(words)]
    config = _config(platform, digest, given, [name for name in named if name not in given])
    found = params_of(ParamSource.CONFIG, config)
    if contract.trial is not None:
        found += params_of(ParamSource.STUDY, contract.trial.params)
    found += params_of(ParamSource.ARGUMENT, read_arguments(words))
    return tuple(found)


def _config(
    platform: Platform, digest: str | None, given: Sequence[str], named: Sequence[str]
) -> dict[str, Param]:
    """The values in some files of the work directory, those of later files over those of earlier ones."""
    if not given and not named:
        return {}
    files: Mapping[str, bytes | None] = {}
    if digest is not None:
        path = code.local_archive(platform, digest)
        files = read_members(path, {*given, *named}, MAX_FILE_BYTES)
    whole: dict[str, Param] = {}
    problems = list[Problem]()
    for name in given:
        try:
            whole |= _values(name, files)
        except ValueError as error:
            problems.append(Problem("config_files", str(error), name))
    if problems:
        raise SpecInvalid(problems)
    for name in named:
        try:
            whole |= _values(name, files)
        except ValueError:
            continue  # what the command names may be no configuration at all
    return whole


def _values(name: str, files: Mapping[str, bytes | None]) -> dict[str, Param]:
    """The values in a file by dotted name. Raises ValueError."""
    if name not in files:
        raise ValueError(
            "is not in the work directory, or left out by .gitignore or .phalanxignore"
        )
    data = files[name]
    if data is None:
        raise ValueError(f"is larger than {format_size(MAX_FILE_BYTES)}")
    try:
        found = _read(name, data.decode())
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(found, dict):
        raise ValueError("holds no mapping of names to values")
    return {name: _number(one) for name, one in flattened(found)}


def _read(name: str, text: str) -> Any:
    ending = name.rpartition(".")[2].lower()
    if ending == "json":
        return json.loads(text)
    if ending == "toml":
        return tomllib.loads(text)
    return yaml.load(text, Loader=_LOADER)


def _number(value: Param) -> Param:
    """YAML 1.1 takes `1e-3` for a text: here it is a number, as in Python."""
    number = parsed(value) if isinstance(value, str) else value
    return number if isinstance(number, float) else value
