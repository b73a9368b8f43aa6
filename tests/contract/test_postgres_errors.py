"""What a start on PostgreSQL says when it is not possible, and that no password is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import NotSupported, ServerError, StoreUnavailable, UserError
from phalanx.schemas.home import HomeLayout
from phalanx.server.settings import DatabaseSettings
from phalanx.standalone.control_plane import refuse_password
from phalanx.standalone.home import prepare_home, remember_database
from phalanx.store import open_store
from phalanx.store.database import probe
from phalanx.store.engines.postgresql import unreachable, without_password
from support.databases import PostgresServer

SECRET = "hunter-of-secrets"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql://ada:{SECRET}@127.0.0.1:1/x", "Connection refused"),
        (f"postgresql://ada:{SECRET}@no-such-host.invalid/x", "resolve"),
        (f"mysql://ada:{SECRET}@h/x", "mysql"),
        (f"postgresql://ada:{SECRET}@h", "names no database"),
        (f"ada {SECRET}", "cannot be read"),
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str, said: str) -> None:
    with pytest.raises((StoreUnavailable, UserError)) as caught:
        open_store(url)
    assert said in caught.value.message and caught.value.hint
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_database_that_is_gone_is_told_as_such_by_every_reading(postgres: PostgresServer) -> None:
    """`/readyz` asks for the revision first: what it raises must be an error with a message."""
    store = open_store(postgres.create("phalanx_gone"))
    postgres.drop("phalanx_gone")
    for reading in (store.revision, lambda: store.transact(probe), lambda: store.view(probe)):
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            reading()
    store.close()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('FATAL:  password authentication failed for user "ada"', "password"),
        ('FATAL:  database "x" does not exist', "createdb"),
        ("FATAL:  sorry, too many clients already", "max_connections"),
        ("connection timed out", "server runs"),
    ],
)
def test_every_cause_has_a_remedy(said: str, remedy: str) -> None:
    found = unreachable("postgresql://h/x", said)
    assert said.split("FATAL:  ")[-1] in found.message and remedy in found.hint


def test_a_password_is_left_out_wherever_it_stands() -> None:
    url = f"postgresql+psycopg://ada:{SECRET}@h:5432/x?password={SECRET}&sslmode=require"
    assert without_password(url) == "postgresql://ada@h:5432/x?sslmode=require"
    for refused in (url, f"postgresql://h/x?password={SECRET}"):
        with pytest.raises(UserError, match="list of processes"):
            refuse_password(refused)
    refuse_password("postgresql://ada@h/x")
    refuse_password("file:/etc/phalanx/database")
    assert SECRET not in repr(DatabaseSettings(url=url))


def test_a_home_does_not_change_its_database_unnoticed(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "home")
    remember_database(home, f"postgresql://ada:{SECRET}@h/x")
    assert home.database_place.read_text() == "postgresql://ada@h/x\n"
    with pytest.raises(ServerError, match="uses the database postgresql://ada@h/x"):
        remember_database(home, None)
    other = HomeLayout(tmp_path / "other")
    prepare_home(other.root)
    other.database_file.touch()
    with pytest.raises(ServerError, match="jobs in SQLite"):
        remember_database(other, "postgresql://h/x")
    remember_database(other, None)


@pytest.mark.extras
def test_the_server_itself_is_checked(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(NotSupported, match="LATIN1"):
        open_store(postgres.url("latin"))
    with pytest.raises(StoreUnavailable, match="does not exist") as caught:
        open_store(postgres.url("nothing_here"))
    assert "createdb" in caught.value.hint


@pytest.mark.extras
def test_up_reads_the_url_from_a_file_and_shows_its_password_nowhere(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Nothing answers at the URL: the start fails, and neither output nor files have the password."""
    file = tmp_path / "url"
    file.write_text(f"postgresql://ada:{SECRET}@127.0.0.1:1/x\n")
    words = ["--home", str(tmp_path / "home"), "--database-url", f"file:{file}"]
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.standalone", *words],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 1 and "cannot connect" in done.stderr
    kept = "".join(one.read_text() for one in (tmp_path / "home").rglob("*") if one.is_file())
    assert SECRET not in done.stdout + done.stderr + kept
