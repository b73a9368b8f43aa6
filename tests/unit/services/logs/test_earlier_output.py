"""Output that an earlier release stored: what is missing of it is told as before, and moves into packs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from phalanx.services.logs import packing
from phalanx.services.logs.reading import Wanted, look_up, read
from phalanx.services.objects.log_files import LogFiles
from phalanx.services.queries.logs import assemble
from phalanx.store import migrate, open_store

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]

# (rank, received, size, expired), and (id, rank, offset, dropped, data); all of generation 0 and `out`.
STREAMS = [(0, 40, None, 0), (1, 30, None, 0), (2, 20, 20, 0), (3, 10, 50, 0), (4, 8, None, 8)]
SEGMENTS = [
    (1, 0, 0, 0, b"first of 0\n"),  # the protected beginning
    (2, 1, 0, 0, b"one\n"),
    # Here the limit of the job deleted output.
    (20, 1, 30, 0, b""),  # its newest bytes are among it
    (21, 2, 20, 5, b""),  # all of it is, and its end was said
    (22, 0, 33, 2, b"newest\n"),
    (23, 3, 0, 0, b"nine\nten.\n"),
    (24, 3, 50, 0, b""),  # the rest was not sent
]
TOLD = [
    (0, "first of 0"),
    (1, "one"),
    (0, ("limit", 22)),
    (0, ("lost", 2)),
    (0, "newest"),
    (1, ("limit", 26)),
    (2, ("limit", 20)),
    (2, ("lost", 5)),
    (3, "nine"),
    (3, "ten."),
    (3, ("unsent", 40)),
]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "db" / "phalanx.sqlite"
    path.parent.mkdir()
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, "0041b")
        for rank, received, size, expired in STREAMS:
            conn.execute(
                text(
                    "INSERT INTO log_streams (job, attempt, generation, rank, stream, received, size, "
                    "expired) VALUES (1, 1, 0, :rank, 'out', :received, :size, :expired)"
                ),
                {"rank": rank, "received": received, "size": size, "expired": expired},
            )
        for number, rank, offset, dropped, data in SEGMENTS:
            conn.execute(
                text(
                    'INSERT INTO log_segments (id, job, attempt, generation, rank, stream, "offset", '
                    "dropped, at, data) VALUES (:id, 1, 1, 0, :rank, 'out', :at, :dropped, :id, :data)"
                ),
                {"id": number, "rank": rank, "at": offset, "dropped": dropped, "data": data},
            )
        conn.execute(text("INSERT INTO log_volumes (job, stored_bytes, head_id) VALUES (1, 32, 2)"))
        conn.execute(text("UPDATE counters SET value = 24 WHERE name = 'log'"))
    engine.dispose()
    store = open_store(path)
    yield SimpleNamespace(store=store, log_files=LogFiles(tmp_path / "logs"), may_act=lambda: None)
    store.close()


def told(platform: Any) -> list[Any]:
    looked = platform.store.view(lambda tx: look_up(tx, 1, Wanted()))
    logs = read(platform, looked)
    lines, rest = assemble(logs.segments, logs.marks, logs.begun, logs.bounds, flush=True)
    assert not rest
    found = [
        (one.rank, one.text if one.gap is None else (one.gap.cause, one.gap.num_bytes))
        for one in lines
    ]
    return sorted(found, key=lambda one: one[0])


def test_what_is_missing_of_earlier_output_is_told_as_before(platform: Any) -> None:
    expected = sorted(TOLD, key=lambda one: one[0])
    assert told(platform) == expected
    while packing.pack_job(platform, 1, 100):
        pass
    assert told(platform) == expected
