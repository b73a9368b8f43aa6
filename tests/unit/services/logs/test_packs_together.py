"""Packs that are made in one call continue one another, as those of several calls do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.logs.segments import LogSegment
from phalanx.services.logs import packing
from phalanx.services.objects.log_files import LogFiles
from phalanx.store import open_store, telemetry
from phalanx.store.logs import packs

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]


def test_each_pack_says_where_the_one_before_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 20)
    store = open_store(tmp_path / "db" / "x.sqlite")
    platform: Any = SimpleNamespace(store=store, log_files=LogFiles(tmp_path / "logs"))
    for number in range(6):
        piece = LogSegment(
            0, 1, 1, 0, number % 2, "out", number // 2 * 10, 0, number, b"123456789\n"
        )
        store.transact(lambda tx, one=piece: telemetry.add_log(tx, one))  # type: ignore[misc]
    assert packing.pack_job(platform, 1, 9)
    found = store.view(lambda tx: packs.of_job(tx, 1))
    assert [[(one.before, one.begin, one.end) for one in row.streams] for row in found] == [
        [(0, 0, 10)] * 2,
        [(10, 10, 20)] * 2,
        [(20, 20, 30)] * 2,
    ]
    store.close()
