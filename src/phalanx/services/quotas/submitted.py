"""The limit on jobs of a user that have not ended, checked where jobs are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.model.quotas import quota_of
from phalanx.errors import Conflict
from phalanx.schemas.pools.project_file import ProjectSpec, lineage, quotas_to_core
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts
from phalanx.store.quotas import rows


def check_submitted(platform: Platform, tx: Tx, fresh: Iterable[JobFacts]) -> None:
    """Raise Conflict where a user would have more jobs that have not ended than a quota allows."""
    said = over_submitted(platform, tx, fresh)
    if said is not None:
        raise Conflict(
            said,
            "submit again when some of them have ended, or ask for a higher max_submitted: "
            "`phalanx quotas` shows yours",
        )


def over_submitted(platform: Platform, tx: Tx, fresh: Iterable[JobFacts]) -> str | None:
    """What keeps new jobs from being stored, in words; None: they may be.

    A new number has to be taken in the transaction before: it orders submissions of all replicas.
    """
    specs, users = platform.scheduler_cache.rows.quotas(tx)
    inside = {name: quotas_to_core(one.users) for name, one in specs.items() if one.users}
    limited = [*users, *(quota for quotas in inside.values() for quota in quotas)]
    if all(one.max_submitted is None for one in limited):
        return None
    added = Counter((one.project, one.owner) for one in fresh)
    for project, user in added:
        for place in ("", *(one.name for one in lineage(specs, project))):
            said = _over(tx, specs, inside.get(place, ()) if place else users, place, user, added)
            if said is not None:
                return said
    return None


def _over(
    tx: Tx,
    specs: Mapping[str, ProjectSpec],
    quotas: tuple[UserQuota, ...],
    place: str,
    user: str,
    added: Mapping[tuple[str, str], int],
) -> str | None:
    """Whether a user would have too many jobs in a project and its parts, or everywhere."""
    most = quota_of(user, {one.user: one for one in quotas}).max_submitted
    if most is None:
        return None
    within = None
    if place:
        within = [name for name in specs if any(one.name == place for one in lineage(specs, name))]
    more = sum(
        num
        for (project, owner), num in added.items()
        if owner == user and (within is None or project in within)
    )
    live = rows.num_live(tx, user, within)
    if live + more <= most:
        return None
    where = f" in project {place}" if place else ""
    return (
        f"user {user} has {live} jobs{where} that have not ended, of at most {most} "
        f"(max_submitted); {more} more would exceed this"
    )
