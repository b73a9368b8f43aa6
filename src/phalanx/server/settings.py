"""The control plane's settings: defaults, then `PHALANX__SECTION__KEY` variables, then arguments.

Nobody else of the control plane reads the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.kit.units import parse_duration

_PREFIX = "PHALANX__"


class Section(BaseModel):
    """One group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(Section):
    """Where jobs are kept."""

    url: str | None = Field(
        default=None, description="PostgreSQL URL; absent: the SQLite file of the home."
    )


class LoopSettings(Section):
    """How often loops look without being woken."""

    scheduler_tick_s: float = Field(default=2.0, gt=0, description="Planner.")
    dispatcher_tick_s: float = Field(default=2.0, gt=0, description="Outbox.")
    timers_tick_s: float = Field(default=5.0, gt=0, description="Back-offs and time limits.")
    poll_tick_s: float = Field(default=0.5, gt=0, description="Supervisors' processes.")
    draining_tick_s: float = Field(
        default=1.0, gt=0, description="Nodes that their own cluster takes away."
    )
    leaving_tick_s: float = Field(
        default=0.02, gt=0, description="The same while a supervisor is on its way out."
    )


class SchedulerSettings(Section):
    """How the planner decides. Durations in seconds."""

    guard_after_s: float = Field(
        default=7 * 86_400.0,
        gt=0,
        description="Whose waits together last longer goes first in its priority.",
    )
    guard_quantum_s: float = Field(
        default=6 * 3600.0, ge=0, description="After that start it is safe from its peers so long."
    )
    peer_hysteresis: float | None = Field(
        default=None,
        gt=1,
        description="A waiting job this many times more urgent than a running one of the same "
        "priority takes its place; absent: never.",
    )
    min_run_s: float = Field(
        default=1200.0, ge=0, description="A fresh start is safe from its peers for so long."
    )
    reservation_ttl_s: float = Field(
        default=900.0,
        gt=0,
        description="How long slots that others left stay with whom they left for.",
    )
    resize_cooldown_s: float = Field(
        default=600.0, ge=0, description="An elastic job keeps its size at least so long."
    )
    urgent_priority: int | None = Field(
        default=None, ge=0, le=100, description="From here on priority stands above guarantees."
    )
    usage_half_life_s: float = Field(
        default=7 * 86_400.0, gt=0, description="What a project used counts half after so long."
    )


def _age(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


# A supervisor may send again what it could not hand over: younger than this nothing is let go.
Age = Annotated[float | None, BeforeValidator(_age), Field(ge=3600)]


class RetentionSettings(Section):
    """What is let go of, and when; durations such as `30d`. Jobs, events and checkpoints stay."""

    logs: Age = Field(
        default=None,
        description="Output of ranks goes when it is so old, and its files when the job ended so "
        "long ago; absent: never.",
    )
    metrics: Age = Field(
        default=None, description="Metrics of jobs that ended so long ago go; absent: never."
    )
    tick_s: float = Field(default=600.0, gt=0, description="How often is looked for what may go.")


class ApiSettings(Section):
    """The HTTP side."""

    allowed_hosts: tuple[str, ...] = Field(
        default=("127.0.0.1", "localhost", "::1"),
        description="Names in the Host header that are answered, beside that of the server's URL.",
    )
    max_wait_s: float = Field(default=30.0, gt=0, description="Upper limit of a long poll.")
    max_body_bytes: int = Field(
        default=64 << 20, gt=0, description="Upper limit of a body that is not code."
    )


class Settings(BaseSettings):
    """Everything that may be set."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database: DatabaseSettings = DatabaseSettings()
    loops: LoopSettings = LoopSettings()
    api: ApiSettings = ApiSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    retention: RetentionSettings = RetentionSettings()
    idle_exit_s: float | None = Field(
        default=None, description="Leave after this long without a client and without a live job."
    )
    contact_lost_after_s: float = Field(
        default=480.0, gt=0, description="A supervisor that is alone for longer stops its ranks."
    )


def read_settings() -> Settings:
    """The settings of this process's environment. Raises SpecInvalid naming each wrong variable."""
    problems = []
    for name in sorted(os.environ):  # noqa: TID251
        section = name.removeprefix(_PREFIX).partition("__")[0].lower()
        if name.startswith(_PREFIX) and section not in Settings.model_fields:
            close = nearest(section, Settings.model_fields)
            hint = "" if close is None else f"; did you mean {_PREFIX}{close.upper()}?"
            problems.append(Problem(name, f"there is no such setting{hint}"))
    try:
        found = Settings()
    except ValidationError as error:
        for one in error.errors():
            name = _PREFIX + "__".join(str(part).upper() for part in one["loc"])
            problems.append(Problem(name, one["msg"], str(one["input"])))
    except SettingsError as error:
        problems.append(Problem("", f"{error}: write JSON"))
    if problems:
        raise SpecInvalid(problems, "docs/reference/settings.md lists all settings")
    return found


_KEPT = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR",
    "TZ", "USER",
)  # fmt: skip


def base_environment() -> dict[str, str]:
    """What ranks of `submit` jobs start from: this machine's, without what belongs to the caller.

    The folder of the server's interpreter leads the PATH, so that `python` means the same one.
    """
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}  # noqa: TID251
    here = str(Path(sys.executable).parent)
    rest = [part for part in env.get("PATH", os.defpath).split(os.pathsep) if part != here]
    env["PATH"] = os.pathsep.join([here, *rest])
    env.setdefault("HOME", str(Path("~").expanduser()))
    env.setdefault("LANG", "C.UTF-8")
    return env
