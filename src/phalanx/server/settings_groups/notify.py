"""Settings of the built-in notifier: receivers of alerts and of ends of jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phalanx.core.alerts.prometheus import AlertLinks
from phalanx.core.notify.grouping import AlertReceiver
from phalanx.core.notify.signing import key_of
from phalanx.errors import UserError
from phalanx.server.settings_groups.forms import SettingsGroup, file_or_value
from phalanx.services.notify.config import ChannelKind, MailConfig, NotifyConfig, ReceiverConfig

_MAIL = re.compile(r"[^@\s,;<>\"]{1,64}@[A-Za-z0-9.-]{1,190}")
_URL = re.compile(r"https?://[!-~]{1,2000}")
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
_Secret = Annotated[str, Field(max_length=400)]


def _value(given: str) -> Callable[[], str]:
    return file_or_value(given, UserError)


class ReceiverSettings(SettingsGroup):
    """One receiver: a webhook, a channel of Slack, or addresses of mail."""

    webhook: str | None = Field(
        default=None, repr=False, description="URL that gets messages, or `file:PATH`."
    )
    slack: str | None = Field(
        default=None,
        repr=False,
        description="URL of an incoming webhook of Slack or of what is compatible, or `file:PATH`.",
    )
    mail: tuple[str, ...] = Field(default=(), max_length=20, description="Addresses of mail.")
    secrets: tuple[_Secret, ...] = Field(
        default=(),
        max_length=2,
        repr=False,
        description="Secrets that sign webhooks, `whsec_` with base64 behind it, or `file:PATH`; two "
        "while they are changed.",
    )
    severities: tuple[Literal["page", "ticket", "none"], ...] = Field(
        default=("page", "ticket"), description="Alerts of these severities are told."
    )
    projects: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        default=(),
        max_length=100,
        description="Only what is about jobs of these projects; empty: everything.",
    )
    jobs: tuple[Literal["succeeded", "failed", "cancelled"], ...] = Field(
        default=(), description="States in which the end of a job is told."
    )

    waits_s: float | None = Field(
        default=None,
        ge=60,
        le=30 * 86_400,
        description="A job that waits in the queue for longer than this, for slots or a quota, is told.",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = [one for one in ("webhook", "slack", "mail") if getattr(self, one)]
        if len(given) != 1:
            raise ValueError("needs exactly one of webhook, slack and mail")
        for url in (self.webhook, self.slack):
            if url and not url.startswith("file:") and not _URL.fullmatch(url):
                raise ValueError("has a URL that does not begin with https://")
        for address in self.mail:
            if not _MAIL.fullmatch(address):
                raise ValueError("has an address of mail that cannot be read")
        if self.secrets and self.webhook is None:
            raise ValueError("has secrets, which sign webhooks only")
        for secret in self.secrets:
            if not secret.startswith("file:"):
                key_of(secret)
        return self

    def resolved(self, name: str) -> ReceiverConfig:
        """The receiver of the services."""
        kind = ChannelKind.MAIL
        if self.webhook is not None:
            kind = ChannelKind.WEBHOOK
        elif self.slack is not None:
            kind = ChannelKind.SLACK
        secrets = [_value(one) for one in self.secrets]
        return ReceiverConfig(
            wants=AlertReceiver(name, self.severities, self.projects),
            kind=kind,
            url=_value(self.webhook or self.slack or ""),
            keys=lambda: tuple(key_of(one()) for one in secrets),
            mail=self.mail,
            jobs=self.jobs,
            waits_s=self.waits_s,
        )


class NotifySettings(SettingsGroup):
    """The built-in notifier of alerts, which needs no Prometheus."""

    receivers: dict[_Name, ReceiverSettings] = Field(
        default={},
        max_length=50,
        repr=False,
        description='Receivers by name, such as `{"ops": {"webhook": "https://…", "secrets": '
        '["file:/run/secrets/hook"]}}`. Without any, alerts are not evaluated.',
    )
    evaluate_s: float = Field(
        default=60.0, ge=10, le=60, description="Interval between evaluations of alerts."
    )
    allow_private: bool = Field(
        default=False,
        description="Webhooks may go to private addresses, and to URLs that begin with http://.",
    )
    cluster: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")] = Field(
        default="", description="Name of this installation in messages."
    )
    runbooks: Annotated[str, Field(max_length=500)] = Field(
        default="", description="URL of the folder of the runbooks, for links in messages."
    )
    dashboards: Annotated[str, Field(max_length=500)] = Field(
        default="", description="URL of Grafana, for links in messages."
    )
    smtp_host: Annotated[str, Field(max_length=255)] = Field(
        default="", description="Server that takes mail; empty: no mail is sent."
    )
    smtp_port: int = Field(default=587, ge=1, le=65535, description="Its port.")
    smtp_from: Annotated[str, Field(max_length=255)] = Field(
        default="", description="Address that mail comes from."
    )
    smtp_starttls: bool = Field(default=True, description="Whether mail is sent over TLS only.")
    smtp_user: Annotated[str, Field(max_length=255)] = Field(
        default="", description="User that the control plane logs in as; empty: no login."
    )
    smtp_password: str = Field(
        default="", repr=False, description="Password of the user, or `file:PATH`."
    )

    @model_validator(mode="after")
    def _has_a_mail_server(self) -> Self:
        mail = [name for name, one in self.receivers.items() if one.mail]
        if mail and not (self.smtp_host and self.smtp_from):
            raise ValueError(f"{mail[0]} gets mail, which needs smtp_host and smtp_from")
        return self

    def resolved(self, control_plane: str) -> NotifyConfig:
        """The configuration of the services; `control_plane` is the URL of links to jobs."""
        mail = MailConfig(
            self.smtp_host,
            self.smtp_port,
            self.smtp_from,
            self.smtp_starttls,
            self.smtp_user,
            _value(self.smtp_password),
        )
        return NotifyConfig(
            receivers={name: one.resolved(name) for name, one in self.receivers.items()},
            links=AlertLinks(
                self.runbooks.rstrip("/"),
                self.dashboards.rstrip("/"),
                control_plane.rstrip("/"),
                self.cluster,
            ),
            allow_private=self.allow_private,
            mail=mail if self.smtp_host else None,
        )
