"""Request profiles of a running job, and read stored profiles."""

from __future__ import annotations

from phalanx.core.jobs.events import ProfileRequested
from phalanx.core.telemetry.profiles import EXTRAS, MAX_STEPS
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import (
    ProfileRequest,
    ProfilesView,
    ProfileView,
    RequestTicket,
)
from phalanx.services.platform import Platform
from phalanx.services.queries.stacks import ask_ranks
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent
from phalanx.store.idempotency import RequestKey

NOTE = "profiled"


def ask_profile(
    platform: Platform,
    num: int,
    wish: ProfileRequest,
    now: int,
    actor: str,
    key: RequestKey | None = None,
) -> RequestTicket:
    """Have the ranks profile their next steps.

    Raises NotFound, UserError for a wish that makes no sense, and Conflict where no rank runs.
    """
    if not (0 <= wish.traced <= MAX_STEPS and 1 <= wish.steps <= MAX_STEPS):
        raise UserError(f"steps must be 1 to {MAX_STEPS}, and traced 0 to {MAX_STEPS}")
    for one in wish.extras:
        if one not in EXTRAS:
            raise UserError(f"extras: {one!r} must be one of {', '.join(EXTRAS)}")
    event = ProfileRequested(wish.steps, wish.traced, tuple(wish.extras))
    return ask_ranks(platform, num, event, now, actor, key)


def read_profiles(platform: Platform, num: int) -> ProfilesView:
    """Read the stored profiles of a job, oldest first. Raises NotFound."""

    def work(tx: Tx) -> ProfilesView:
        live = jobs.load(tx, num).job.attempt
        notes = events.of_job(tx, num, limit=100_000, kinds=(NOTE,))
        return ProfilesView(
            profiles=[_view(note) for note in notes],
            attempt=None if live is None else live.num,
            generation=None if live is None else live.generation,
        )

    return platform.store.view(work)


def _view(note: StoredEvent) -> ProfileView:
    place = {"attempt": note.attempt or 0, "generation": note.generation or 0}
    return ProfileView.model_validate({**note.data, **place, "at": at_of(int(note.data["at"]))})
