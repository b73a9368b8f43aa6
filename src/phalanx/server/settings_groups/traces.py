"""Settings of traces: where spans of jobs are sent."""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from phalanx.errors import UserError
from phalanx.server.settings_groups.forms import SettingsGroup, TimeLimit, file_or_value
from phalanx.services.tracing.endpoint import TraceConfig

_URL = re.compile(r"https?://[!-~]{1,2000}")
_PATH = "/v1/traces"
_Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class TraceSettings(SettingsGroup):
    """Spans of jobs for an OpenTelemetry endpoint."""

    endpoint: str = Field(
        default="",
        description="URL of an OpenTelemetry collector that takes OTLP over HTTP, such as "
        "`http://collector:4318`; without a path, /v1/traces is added. Empty: no spans are sent.",
    )
    headers: dict[_Header, Annotated[str, Field(max_length=4000)]] = Field(
        default={},
        max_length=20,
        repr=False,
        description='Headers of each request, such as `{"authorization": "file:/run/secrets/otlp"}`; '
        "a value, or `file:PATH`, which is read at each use.",
    )
    give_up_s: TimeLimit = Field(
        default=3600.0, description="Spans that are older than this are dropped, not sent."
    )

    @model_validator(mode="after")
    def _can_be_sent_to(self) -> Self:
        if self.endpoint and not _URL.fullmatch(self.endpoint):
            raise ValueError("has an endpoint that does not begin with http:// or https://")
        return self

    def resolved(self) -> TraceConfig:
        """The configuration of the services."""
        headers = {name: file_or_value(one, UserError) for name, one in self.headers.items()}
        bare = self.endpoint.rstrip("/")
        added = _PATH if bare and not urlsplit(bare).path else ""
        return TraceConfig(
            url=bare + added,
            headers=lambda: {name: read() for name, read in headers.items()},
            give_up_s=self.give_up_s or 3600.0,
        )
