"""Tables of anomalies of cost and of imported bills: `store.cost` reads and writes them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, String, Table

from phalanx.store.tables import metadata

cost_anomalies = Table(
    "cost_anomalies",
    metadata,
    Column("num", BigInteger, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),  # core.cost.anomaly_life.AnomalyState
    Column("scope", String(16), nullable=False),  # core.cost.anomalies.AnomalyScope
    Column("name", String(512), nullable=False),  # of the project, user or pool; NAME=VALUE
    Column("found_at", BigInteger, nullable=False),
    Column("data", JSON, nullable=False),  # core.cost.anomaly_life.CostAnomaly
    Index(None, "state"),
)

# Imported bills of cloud providers.
bills = Table(
    "bills",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("num_lines", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),  # the sum of its lines
    Column("imported_at", BigInteger, nullable=False),  # of the newest part
    Column("imported_by", String(128), nullable=False),
)

# Their lines. The key admits each line once, in whichever bill it came first.
bill_lines = Table(
    "bill_lines",
    metadata,
    Column("id", String(128), primary_key=True),  # of the provider, or a digest of the line
    Column("bill", String(128), nullable=False),
    Column("from_at", BigInteger, nullable=False),
    Column("to_at", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),  # core.cost.bills.BilledKind
    Column("place", String(256), nullable=False),  # the pool or the store; empty: not known
    Column("slot_type", String(128), nullable=False),  # of a transfer: the direction
    Column("nano_usd", BigInteger, nullable=False),  # credits are negative
    Index(None, "bill"),
    Index(None, "from_at"),
)
