"""Tables of what attempts ran with: `store.provenance` reads and writes them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, String, Table, Text

from phalanx.store.tables import metadata

# Long texts, each stored once: differences to a Git commit, lists of installed packages.
provenance_texts = Table(
    "provenance_texts",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of the text in UTF-8
    Column("size_bytes", BigInteger, nullable=False),  # of the text
    Column("body", LargeBinary, nullable=False),  # the text, compressed by zlib
    Column("created_at", BigInteger, nullable=False),
)

# The software on each node of an attempt.
attempt_software = Table(
    "attempt_software",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),  # core.contract.provenance.InstalledSoftware
    Column("at", BigInteger, nullable=False),
)

# The image on each node of an attempt, as the cluster resolved it.
attempt_images = Table(
    "attempt_images",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("image", String(512), nullable=False),  # with its digest
    Column("at", BigInteger, nullable=False),
)

# The inputs on each node of an attempt, as they were staged.
attempt_inputs = Table(
    "attempt_inputs",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("name", String(128), primary_key=True),
    Column("place", Text, nullable=False),  # path or URL
    Column("num_files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("fingerprint", String(256), nullable=False),
    Column("at", BigInteger, nullable=False),
)
