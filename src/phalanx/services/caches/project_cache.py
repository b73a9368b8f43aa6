"""Projects, quotas of users and residency rules, decoded only where they changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.core.reasons import Reason
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.schemas.pools.project_file import (
    ProjectSpec,
    StoreSpec,
    UserQuotaSpec,
    quotas_to_core,
)
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store import resources
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.quotas import rows as quotas

_TABLES = (resources.projects, quotas.users, resources.data_stores)


@dataclass
class ProjectCache:
    """What project files have applied, as of its stamps. Its owner holds a lock around every call."""

    stamp: object = ()  # a different object after a change
    projects: dict[str, ProjectSpec] = field(default_factory=dict)  # by name
    users: tuple[UserQuota, ...] = ()  # quotas of each user on the whole platform
    residency: ResidencyRules = field(default_factory=ResidencyRules)
    _bound: bool = False  # whether a project has a rule
    _outside: dict[int, tuple[int, Reason | None]] = field(
        default_factory=dict
    )  # (version, reason)

    def refresh(self, tx: Tx) -> bool:
        """Read what has changed. Returns whether the residency of projects may have."""
        stamps = tuple(table.stamps(tx) for table in _TABLES)
        if self.stamp == stamps:
            return False
        before = self.residency
        users = {one.name: UserQuotaSpec(**one.body) for one in quotas.users.now(tx)}
        self.stamp, self.users = stamps, quotas_to_core(users)
        stores = (StoreSpec(**one.body) for one in resources.data_stores.now(tx))
        self.projects = {one.name: ProjectSpec(**one.body) for one in resources.projects.now(tx)}
        self.residency = ResidencyRules(self.projects, tuple(one.to_core() for one in stores))
        self._outside.clear()
        self._bound = any(one.residency for one in self.projects.values())
        return self._bound or any(one.residency for one in before.projects.values())

    def allowed(self, stored: StoredJob) -> tuple[str, ...] | None:
        """The values of the label `residency` that a job may use; None: any."""
        if stored.facts.demand.residency is None and not self._bound:
            return None
        return self.residency.allowed(stored.facts)

    def outside_residency(self, waiting: Sequence[StoredJob]) -> dict[int, Reason]:
        """The queued jobs with a store that a rule, which has changed since, does not allow."""
        found = {}
        for one in waiting:
            num = one.job.num
            known = self._outside.get(num)
            if known is None or known[0] != one.version:
                bound = self.allowed(one) is not None
                reason = self.residency.waits_for(one.facts) if bound else None
                known = self._outside[num] = (one.version, reason)
            if known[1] is not None:
                found[num] = known[1]
        return found

    def forget(self, num: int) -> None:
        """Drop what is kept of a job that is not queued any more."""
        self._outside.pop(num, None)
