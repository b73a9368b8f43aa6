"""Settings of the senders of output to other log stores."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from phalanx.errors import UserError
from phalanx.server.settings_groups.forms import SettingsGroup, file_or_value
from phalanx.services.logs.endpoints import LogSenders, SenderConfig, SenderKind

# Without a user in it: credentials are settings of their own.
_URL = re.compile(r"https?://[^@\s?#]{1,2000}")
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class SenderSettings(SettingsGroup):
    """One sender: the URL of a Loki, an Elasticsearch, or a collector of OpenTelemetry."""

    loki: str | None = Field(
        default=None, description="URL of Loki, without the path of its API, or `file:PATH`."
    )
    elasticsearch: str | None = Field(
        default=None,
        description="URL of Elasticsearch or OpenSearch, without the path of its API, or `file:PATH`.",
    )
    otlp: str | None = Field(
        default=None,
        description="URL of a collector that takes OTLP over HTTP, without `/v1/logs`, or `file:PATH`.",
    )
    authorization: Annotated[str, Field(max_length=8192)] = Field(
        default="",
        repr=False,
        description="Value of the header `Authorization`, such as `Bearer …`, or `file:PATH`.",
    )
    tenant: Annotated[str, Field(max_length=150, pattern=r"^[!-~]*$")] = Field(
        default="", description="Tenant of Loki: the header `X-Scope-OrgID`."
    )
    index: Annotated[str, Field(max_length=200, pattern=r"^[a-z0-9][a-z0-9._-]*$")] = Field(
        default="phalanx-logs", description="Index of Elasticsearch; not a data stream."
    )
    projects: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        default=(), max_length=100, description="Only jobs of these projects; empty: all."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = [one for one in (self.loki, self.elasticsearch, self.otlp) if one]
        if len(given) != 1:
            raise ValueError("needs exactly one of loki, elasticsearch and otlp")
        if not given[0].startswith("file:") and not _URL.fullmatch(given[0]):
            raise ValueError("has a URL that is not like https://HOST:PORT, without user and query")
        return self

    def resolved(self, name: str) -> SenderConfig:
        """The sender of the services."""
        urls = {
            SenderKind.LOKI: self.loki,
            SenderKind.ELASTICSEARCH: self.elasticsearch,
            SenderKind.OTLP: self.otlp,
        }
        kind, url = next((kind, url) for kind, url in urls.items() if url)
        return SenderConfig(
            name=name,
            kind=kind,
            url=file_or_value(url, UserError),
            authorization=file_or_value(self.authorization, UserError),
            tenant=self.tenant,
            index=self.index,
            projects=self.projects,
        )


class LogSenderSettings(SettingsGroup):
    """Senders of the output of ranks to other log stores."""

    senders: dict[_Name, SenderSettings] = Field(
        default={},
        max_length=8,
        repr=False,
        description='Senders by name, such as `{"loki": {"loki": "https://loki.example.com", '
        '"authorization": "file:/run/secrets/loki"}}`. Without any, output is sent nowhere.',
    )
    cluster: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")] = Field(
        default="", description="Name of this installation in what is sent."
    )
    allow_private: bool = Field(
        default=False,
        description="Endpoints may have private addresses, and URLs that begin with http://.",
    )
    tick_s: float = Field(
        default=5.0, ge=0.1, le=600, description="Interval between looks for new output."
    )

    def resolved(self) -> LogSenders:
        """The senders of the services."""
        found = tuple(one.resolved(name) for name, one in sorted(self.senders.items()))
        return LogSenders(found, self.cluster, self.allow_private)
