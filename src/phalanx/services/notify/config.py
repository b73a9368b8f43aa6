"""What the notifier is configured with: receivers, links in messages, and the mail server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.core.alerts.prometheus import AlertLinks
from phalanx.core.notify.grouping import AlertReceiver


class ChannelKind(StrEnum):
    """How messages reach a receiver."""

    WEBHOOK = "webhook"  # Standard Webhooks
    SLACK = "slack"  # an incoming webhook of Slack, or of what is compatible
    MAIL = "mail"


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """One receiver with its address. Secrets are read at each use, so that files may change."""

    wants: AlertReceiver
    kind: ChannelKind
    url: Callable[[], str] = field(default=lambda: "", repr=False)  # of a webhook
    keys: Callable[[], tuple[bytes, ...]] = field(default=lambda: (), repr=False)  # that sign
    mail: tuple[str, ...] = ()  # addresses
    jobs: tuple[str, ...] = ()  # states in which the end of a job is told
    waits_s: float | None = None  # a job that is queued for longer is told; None: none is

    @property
    def name(self) -> str:
        """The name in the settings."""
        return self.wants.name


@dataclass(frozen=True, slots=True)
class MailConfig:
    """The server that takes mail."""

    host: str
    port: int
    sender: str
    starttls: bool = True
    user: str = ""  # empty: no login
    password: Callable[[], str] = field(default=lambda: "", repr=False)


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """All receivers. Without any, nothing is evaluated."""

    receivers: Mapping[str, ReceiverConfig] = field(default_factory=dict)
    links: AlertLinks = field(default_factory=AlertLinks)
    allow_private: bool = False  # whether webhooks may go to private addresses, and without TLS
    mail: MailConfig | None = None
