"""The control plane's settings: defaults, then `PHALANX__SECTION__KEY` variables, then arguments.

Nobody else of the control plane reads the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


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
        default=300.0, ge=0, description="A fresh start is safe from its peers for so long."
    )
    hole_ttl_s: float = Field(
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
        env_prefix="PHALANX__", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database: DatabaseSettings = DatabaseSettings()
    loops: LoopSettings = LoopSettings()
    api: ApiSettings = ApiSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    idle_exit_s: float | None = Field(
        default=None, description="Leave after this long without a client and without a live job."
    )
    contact_lost_after_s: float = Field(
        default=480.0, gt=0, description="A supervisor that is alone for longer stops its ranks."
    )


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
