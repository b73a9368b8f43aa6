"""The routes about what stays of jobs: archive, pin and delete jobs, and pin checkpoints."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from phalanx.schemas.api.jobs import (
    AbandonedDeletionView,
    DeletionView,
    JobView,
    PeriodsRequest,
    PeriodsView,
    PinRequest,
    PinView,
    RetentionView,
)
from phalanx.sdk.transport import V1, Transport


class RetentionCalls(Transport):
    """One method for each route about archived, pinned and deleted jobs; `client.retention`."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def archive(self, num: int) -> JobView:
        """Hide a job that has ended from listings. Raises NotFound, Conflict for one that has not ended."""
        return self._post(f"{V1}/jobs/{num}/archive", None, JobView)

    def unarchive(self, num: int) -> JobView:
        """Show an archived job in listings again. Raises NotFound."""
        return self._post(f"{V1}/jobs/{num}/unarchive", None, JobView)

    def pin(self, num: int) -> JobView:
        """Keep a job and all its data until it is unpinned. Raises NotFound."""
        return self._post(f"{V1}/jobs/{num}/pin", None, JobView)

    def unpin(self, num: int) -> JobView:
        """Let a pinned job be deleted again. Raises NotFound."""
        return self._post(f"{V1}/jobs/{num}/unpin", None, JobView)

    def delete(self, num: int, *, dry_run: bool = False) -> DeletionView:
        """Delete a job that has ended, its checkpoints and their copies included.

        With `dry_run`, only say what would be deleted and what is in the way. Raises NotFound, also for a
        job that is deleted already, and Conflict with what is in the way.
        """
        params = {"dry_run": "true"} if dry_run else {}
        return self._delete_with_answer(f"{V1}/jobs/{num}", DeletionView, params)

    def abandon(self, num: int) -> AbandonedDeletionView:
        """Give up the copies of a deleted job in a store that does not come back; the rest is deleted.

        Raises NotFound, and Conflict where the job is not deleted, where it is deleted completely, and
        where no store holds up its deletion. Needs the scope admin.
        """
        return self._post(f"{V1}/jobs/{num}/deletion/abandon", None, AbandonedDeletionView)

    def overview(self) -> RetentionView:
        """The periods, what the next sweep deletes, and open deletions. Needs the scope admin."""
        return self._get(f"{V1}/retention", RetentionView)

    def periods(self, project: str) -> PeriodsView:
        """The retention periods of a project."""
        return self._get(f"{V1}/projects/{quote(project, safe='')}/retention", PeriodsView)

    def set_periods(self, project: str, **periods: str | None) -> PeriodsView:
        """Change periods of a project, such as `logs="30d"`; None: as its parent or the platform.

        Raises SpecInvalid. Needs the scope admin.
        """
        path = f"{V1}/projects/{quote(project, safe='')}/retention"
        return self._patch(path, PeriodsRequest.model_validate(periods), PeriodsView)

    def pin_checkpoint(self, num: int, checkpoint: str) -> PinView:
        """Keep one checkpoint: `latest`, `best`, a step, the name of its folder or its path.

        Raises NotFound, CheckpointNotFound, and Conflict where its ranks cannot be told of it.
        """
        body = PinRequest(checkpoint=checkpoint)
        return self._post(f"{V1}/jobs/{num}/checkpoints/pin", body, PinView)

    def unpin_checkpoint(self, num: int, checkpoint: str) -> PinView:
        """Let a pinned checkpoint be deleted again. Raises NotFound, CheckpointNotFound, Conflict."""
        body = PinRequest(checkpoint=checkpoint)
        return self._post(f"{V1}/jobs/{num}/checkpoints/unpin", body, PinView)
