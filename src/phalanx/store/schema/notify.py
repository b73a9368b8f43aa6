"""Tables of the built-in notifier: `store.notify` reads and writes them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, LargeBinary, String, Table, Text

from phalanx.store.tables import metadata

# Series that conditions of alerts read, at some times.
alert_samples = Table(
    "alert_samples",
    metadata,
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),  # JSON, compressed by zlib
)

# Alerts that are pending, firing or were resolved a short time ago.
live_alerts = Table(
    "live_alerts",
    metadata,
    Column("fingerprint", String(32), primary_key=True),
    Column("data", JSON, nullable=False),  # core.notify.alert_life.LiveAlert
)

alert_silences = Table(
    "alert_silences",
    metadata,
    Column("num", BigInteger, primary_key=True, autoincrement=False),
    Column("until", BigInteger, nullable=False),
    Column("data", JSON, nullable=False),  # core.notify.grouping.AlertSilence
)

# What each receiver was last told of a group of alerts.
told_groups = Table(
    "told_groups",
    metadata,
    Column("key", String(64), primary_key=True),  # digest of the receiver and the group
    Column("data", JSON, nullable=False),  # core.notify.grouping.ToldGroup
)

# Messages to receivers: an outbox that is kept for a while.
deliveries = Table(
    "deliveries",
    metadata,
    Column("num", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False),  # stable over all tries
    Column("receiver", String(64), nullable=False),
    Column("kind", String(32), nullable=False),  # alerts, digest, job.failed, …
    Column("state", String(16), nullable=False),  # open, sent or dead
    Column("due_at", BigInteger, nullable=False),  # of the next try
    Column("tries", BigInteger, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("done_at", BigInteger, nullable=True),  # sent or dead
    Column("error", String(400), nullable=False),  # of the last try; empty: none
    Column("body", Text, nullable=False),  # JSON, as it is signed
    Index(None, "state", "due_at"),
)

# Receivers that have answered that they are gone.
gone_receivers = Table(
    "gone_receivers",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("message", String(400), nullable=False),
)
