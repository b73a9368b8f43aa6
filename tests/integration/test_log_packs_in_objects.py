"""Packed output in an object store: written, read, told where an object is gone, and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.logs.segments import LogSegment
from phalanx.errors import DataUnavailable
from phalanx.services.logs import packing
from phalanx.services.logs.reading import Wanted, look_up, read
from phalanx.services.objects.log_files import LogFiles
from phalanx.services.queries.logs import assemble
from phalanx.store import Store, open_store, telemetry
from support.s3 import KEY, SECRET, S3Server, needs_s3, s3_server

pytest.importorskip("obstore")
pytestmark = [pytest.mark.integration, pytest.mark.sqlite, needs_s3]
LIMIT = 640
TEXTS = [b"%02d" % number * 39 + b".\n" for number in range(20)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(tmp_path / "db" / "x.sqlite")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def packs_at(root: Path, prefix: str, endpoint: str) -> LogFiles:
    return LogFiles(root / "logs", f"s3://bucket/{prefix}", {"AWS_ENDPOINT_URL": endpoint})


def platform(server: S3Server, store: Store, root: Path, prefix: str) -> Any:
    files = packs_at(root, prefix, server.endpoint)
    return SimpleNamespace(store=store, log_files=files, may_act=lambda: None)


def prints(here: Any, texts: list[bytes], first: int = 0) -> None:
    offset = sum(map(len, TEXTS[:first]))
    for text in texts:
        fresh = LogSegment(0, 1, 1, 0, 0, "out", offset, 0, 5, text)
        here.store.transact(lambda tx, fresh=fresh: telemetry.add_log(tx, fresh, LIMIT))
        offset += len(text)


def told(here: Any) -> list[Any]:
    found = here.store.view(lambda tx: look_up(tx, 1, Wanted()))
    logs = read(here, found)
    lines, _ = assemble(logs.segments, logs.marks, logs.begun, logs.bounds, flush=True)
    return [one.text if one.gap is None else (one.gap.cause, one.gap.num_bytes) for one in lines]


def objects(server: S3Server, prefix: str) -> list[Path]:
    return sorted((server.bucket / prefix).glob("logs/j-1/*"))


def shown(texts: list[bytes]) -> list[str]:
    return [one.decode().removesuffix("\n") for one in texts]


def test_packs_are_objects_and_one_that_is_gone_is_told(
    server: S3Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 80)
    here = platform(server, store, tmp_path, "gone")
    prints(here, TEXTS[:6])
    while packing.pack_job(here, 1, 5):
        pass
    assert len(objects(server, "gone")) == 6 and not (tmp_path / "logs").exists()
    assert told(here) == shown(TEXTS[:6])
    objects(server, "gone")[2].unlink()
    expected: list[Any] = shown(TEXTS[:6])
    expected[2] = ("unreadable", 80)
    assert told(here) == expected


def test_objects_of_packs_that_the_limit_deleted_are_deleted(
    server: S3Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 80)
    here = platform(server, store, tmp_path, "limit")
    for number, text in enumerate(TEXTS):
        prints(here, [text], number)
        packing.pack_job(here, 1, 5)
    packing.logs_step(here, 6)
    assert told(here) == [*shown(TEXTS[:1]), ("limit", 80 * 12), *shown(TEXTS[13:])]
    assert len(objects(server, "limit")) == 8


def test_output_stays_in_rows_while_the_store_is_away(
    server: S3Server, store: Store, tmp_path: Path
) -> None:
    here = platform(server, store, tmp_path, "away")
    prints(here, TEXTS[:3])
    right, away = here.log_files, packs_at(tmp_path, "away", "http://127.0.0.1:9")
    here.log_files = away
    assert not packing.pack_job(here, 1, 5)
    assert told(here) == shown(TEXTS[:3])
    here.log_files = right
    assert packing.pack_job(here, 1, 5)
    here.log_files = away
    with pytest.raises(DataUnavailable, match="cannot be read"):
        told(here)
    here.log_files = right
    assert told(here) == shown(TEXTS[:3])
