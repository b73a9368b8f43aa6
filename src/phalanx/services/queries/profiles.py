"""Request profiles of a running job, and read stored profiles."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.jobs.events import ProfileRequested
from phalanx.core.telemetry.profiles import EXTRAS, MAX_STEPS
from phalanx.errors import Conflict, UserError
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.telemetry import (
    ProfileRequest,
    ProfilesView,
    ProfileView,
    RequestTicket,
)
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent

NOTE = "profiled"


def ask_profile(
    platform: Platform, num: int, wish: ProfileRequest, now: int, actor: str
) -> RequestTicket:
    """Have the ranks profile their next steps.

    Raises NotFound, UserError for a wish that makes no sense, and Conflict where no rank runs.
    """
    _check(wish.steps, wish.traced, wish.extras)
    event = ProfileRequested(wish.steps, wish.traced, tuple(wish.extras))

    def work(tx: Tx) -> RequestTicket:
        before = jobs.load(tx, num).job
        job = commit_events(tx, num, [event], now, actor).job
        attempt = job.attempt
        known = None if before.attempt is None else before.attempt.profile
        if attempt is None or attempt.profile is None or attempt.profile == known:
            raise Conflict(
                f"no rank of {job_label(num)} runs: it is {job.state}",
                f"what was kept of earlier ones: phalanx profile {job_label(num)} --kept",
            )
        return RequestTicket(
            attempt=attempt.num, generation=attempt.generation, request=attempt.profile.request
        )

    return platform.store.transact(work)


def _check(steps: int, traced: int, extras: Sequence[str]) -> None:
    if not (0 <= traced <= MAX_STEPS and 1 <= steps <= MAX_STEPS):
        raise UserError(f"steps: 1 to {MAX_STEPS}; traced: 0 to {MAX_STEPS}")
    for one in extras:
        if one not in EXTRAS:
            raise UserError(f"extras: {one!r} is none of {', '.join(EXTRAS)}")


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
    data = {**note.data, "at": at_of(int(note.data["at"]))}
    return ProfileView.model_validate(
        {**data, "attempt": note.attempt or 0, "generation": note.generation or 0}
    )
