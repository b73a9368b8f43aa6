"""Settings of job classes: the objectives that their jobs must reach."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phalanx.core.slo.objectives import (
    DEFAULT_CLASS,
    QUANTILE,
    STANDARD,
    Indicator,
    JobClass,
    ServiceObjective,
)
from phalanx.server.settings_groups.forms import SettingsGroup, Share, TimeLimit


class ClassSettings(SettingsGroup):
    """Objectives of one class of jobs; one that is absent is not judged."""

    success: Share = Field(
        default=None, description="Share of jobs that must not fail because of the platform."
    )
    goodput: Share = Field(
        default=None, description="Share of held slot time in steps made for the first time."
    )
    start_p95: TimeLimit = Field(
        default=None, description="Time in the queue that 95 % of the jobs stay below."
    )
    recovery_p95: TimeLimit = Field(
        default=None,
        description="Time from a failure until all ranks run, for 95 % of the failures.",
    )
    pages: bool = Field(default=True, description="Whether a fast burn is a page, or a ticket.")

    def resolved(self, name: str) -> JobClass:
        """The class of the core."""
        objectives = (
            (Indicator.SUCCESS, self.success, None),
            (Indicator.GOODPUT, self.goodput, None),
            (Indicator.START, QUANTILE, self.start_p95),
            (Indicator.RECOVERY, QUANTILE, self.recovery_p95),
        )
        timed = (Indicator.START, Indicator.RECOVERY)
        found = tuple(
            ServiceObjective(indicator, target, limit_s)
            for indicator, target, limit_s in objectives
            if target is not None and (limit_s is not None or indicator not in timed)
        )
        return JobClass(name, found, self.pages)


class SloSettings(SettingsGroup):
    """Classes of jobs with their objectives."""

    classes: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")], ClassSettings
    ] = Field(
        default={},
        max_length=50,
        description='Classes by name, such as `{"production": {"success": "99%", "start_p95": "5m"}}`; the '
        "class `default` is that of jobs that name none.",
    )

    def resolved(self) -> dict[str, JobClass]:
        """The classes of the core, the default one among them."""
        return {DEFAULT_CLASS: STANDARD} | {k: v.resolved(k) for k, v in self.classes.items()}
