"""Settings of probe jobs: which pools are probed, how often, and with what."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from phalanx.core.probes import PROBE_COMMAND, ProbeConfig
from phalanx.server.settings_groups.forms import SettingsGroup, read_duration

_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Interval = Annotated[float | None, BeforeValidator(read_duration), Field(ge=60, le=86_400)]


class ProbeSettings(SettingsGroup):
    """Probe jobs, which show whether each pool runs jobs; without an interval there are none."""

    every: _Interval = Field(
        default=None,
        description="Interval between probes of a pool, such as `15m`; absent: pools are not probed.",
    )
    pools: tuple[_Name, ...] = Field(
        default=(), max_length=200, description="Pools that are probed; empty: all."
    )
    run: tuple[Annotated[str, Field(max_length=4000)], ...] = Field(
        default=PROBE_COMMAND,
        min_length=1,
        max_length=64,
        description="What a probe runs. A line `probe step 1: ok 1` is its step.",
    )
    image: Annotated[str, Field(max_length=500)] = Field(
        default="", description="Image of the probes' containers; empty: that of the pool."
    )

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.every is None and (self.pools or self.image or self.run != PROBE_COMMAND):
            raise ValueError("needs `every`: without an interval no pool is probed")
        return self

    def resolved(self) -> ProbeConfig:
        """The configuration of the services."""
        return ProbeConfig(self.every, self.pools, self.run, self.image)
