"""The planning policy in effect: the stored one, or that of the start of the control plane."""

from __future__ import annotations

from phalanx.core.scheduling import NAMED_POLICIES, PURPOSES
from phalanx.errors import UserError
from phalanx.kit.text import shorten
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.pools import SchedulerPolicyView
from phalanx.services.caches.row_cache import PlanningPolicy
from phalanx.services.lifecycle.commit import QUEUE
from phalanx.services.platform import Platform
from phalanx.store import planning
from phalanx.store.database import Tx
from phalanx.store.planning import StoredPolicy


def policy_now(tx: Tx, start: PlanningPolicy) -> PlanningPolicy:
    """The policy of the next pass. `start` is that of the start of the control plane.

    A stored name that this release does not know, of a later release, has no effect.
    """
    stored = planning.stored_policy(tx)
    if stored is None or stored.policy not in NAMED_POLICIES:
        return start
    return start.under(stored.policy)


def show_policy(platform: Platform) -> SchedulerPolicyView:
    """The policy in effect, and where it comes from."""

    def work(tx: Tx) -> SchedulerPolicyView:
        stored, start = planning.stored_policy(tx), platform.policy
        name = policy_now(tx, start).name
        return SchedulerPolicyView(
            policy=name,
            purpose=PURPOSES[name],
            source="start" if stored is None or stored.policy != name else "stored",
            stored=None if stored is None else stored.policy,
            set_at=at_or_none(None if stored is None else stored.set_at),
            set_by=None if stored is None else stored.set_by,
            start=start.name,
            constants={key: f"{value}" for key, value in start.constants.items()},
            policies=dict(PURPOSES),
        )

    return platform.store.view(work)


def set_policy(platform: Platform, name: str, now: int, actor: str) -> SchedulerPolicyView:
    """Store a policy: the next pass plans by it. Raises UserError for an unknown name."""
    if name not in NAMED_POLICIES:
        known = ", ".join(NAMED_POLICIES)
        raise UserError(f"there is no planning policy {shorten(name)!r}; known: {known}")

    def work(tx: Tx) -> None:
        planning.put_policy(tx, StoredPolicy(name, now, actor))
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)
    return show_policy(platform)


def reset_policy(platform: Platform) -> None:
    """Forget the stored policy: the next pass plans by that of the start; may be repeated."""

    def work(tx: Tx) -> None:
        planning.remove_policy(tx)
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)
