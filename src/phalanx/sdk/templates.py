"""The routes about job templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from phalanx.kit.text import random_hex
from phalanx.schemas.api.templates import (
    PutTemplateRequest,
    SubmitTemplateRequest,
    TemplateJobs,
    TemplateView,
)
from phalanx.sdk.transport import V1, Transport


class TemplateCalls(Transport):
    """One method for each route about job templates; `client.templates`, on the connection of the client.

    `project` None: the templates of the whole platform, which every project can use.
    """

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def list(self) -> list[TemplateView]:
        """The newest version of each template."""
        return self._get(f"{V1}/templates", list[TemplateView])

    def show(self, name: str, project: str = "default", version: int | None = None) -> TemplateView:
        """A template as jobs of a project may use it. Raises NotFound."""
        return self._get(_path(project, name), TemplateView, {"version": version})

    def put(
        self,
        name: str,
        template: Mapping[str, Any],
        project: str | None = "default",
        code: str | None = None,
    ) -> TemplateView:
        """Store a new version of a template. Raises SpecInvalid with every problem."""
        body = PutTemplateRequest(template=dict(template), code=code)
        return self._put(_path(project, name), body, TemplateView)

    def remove(self, name: str, project: str | None = "default") -> None:
        """Remove a template with all versions; its jobs stay. Raises NotFound."""
        self._delete(_path(project, name))

    def submit(
        self,
        name: str,
        request: SubmitTemplateRequest,
        project: str = "default",
        *,
        key: str | None = None,
    ) -> TemplateJobs:
        """Submit the job of a template into a project. Raises NotFound, SpecInvalid with every problem.

        `key` is the idempotency key for a caller that repeats the call itself; absent: a new one.
        """
        path = f"{_path(project, name)}/submit"
        return self._post(path, request, TemplateJobs, {}, key=key or random_hex(32))


def _path(project: str | None, name: str) -> str:
    above = "" if project is None else f"/projects/{quote(project, safe='')}"
    return f"{V1}{above}/templates/{quote(name, safe='')}"
