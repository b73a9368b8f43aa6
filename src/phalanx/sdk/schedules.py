"""The routes about schedules."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from phalanx.kit.text import random_hex
from phalanx.schemas.api.schedules import PutScheduleRequest, ScheduleRunView, ScheduleView
from phalanx.sdk.transport import V1, Transport


class ScheduleCalls(Transport):
    """One method for each route about schedules; `client.schedules`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def list(self, project: str | None = None) -> list[ScheduleView]:
        """All schedules, or those of one project, with their next due times and last runs."""
        return self._get(f"{V1}/schedules", list[ScheduleView], {"project": project})

    def show(self, name: str, project: str = "default") -> ScheduleView:
        """One schedule with its next due times and its newest runs. Raises NotFound."""
        return self._get(_path(project, name), ScheduleView)

    def put(self, name: str, request: PutScheduleRequest, project: str = "default") -> ScheduleView:
        """Create a schedule, or with `replace` change one. Raises SpecInvalid, Conflict."""
        return self._put(_path(project, name), request, ScheduleView)

    def remove(self, name: str, project: str = "default") -> None:
        """Remove a schedule; its jobs go on. Raises NotFound."""
        self._delete(_path(project, name))

    def pause(self, name: str, project: str = "default") -> ScheduleView:
        """Let no due time count until it is resumed. Raises NotFound."""
        return self._post(f"{_path(project, name)}/pause", None, ScheduleView)

    def resume(self, name: str, project: str = "default") -> ScheduleView:
        """Let due times from now on count. Raises NotFound."""
        return self._post(f"{_path(project, name)}/resume", None, ScheduleView)

    def run(
        self, name: str, project: str = "default", *, key: str | None = None
    ) -> ScheduleRunView:
        """Submit the job of a schedule now. Raises NotFound, and what a submission raises.

        `key` is the idempotency key for a caller that repeats the call itself; absent: a new one.
        """
        path = f"{_path(project, name)}/run"
        return self._post(path, None, ScheduleRunView, {}, key=key or random_hex(32))


def _path(project: str, name: str) -> str:
    return f"{V1}/projects/{quote(project, safe='')}/schedules/{quote(name, safe='')}"
