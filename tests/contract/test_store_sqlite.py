"""SQLite keeps the contract of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.store import Store, open_store
from phalanx.testing.stores import Reopen, StoreContract
from phalanx.testing.study_stores import StudyStoreContract

pytestmark = pytest.mark.unit


class OnSqlite:
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Reopen]:
        opened: list[Store] = []

        def reopen() -> Store:
            opened.append(open_store(tmp_path / "db" / "phalanx.sqlite"))
            return opened[-1]

        yield reopen
        for store in opened:
            store.close()


class TestSqlite(OnSqlite, StoreContract):
    pass


class TestStudiesOnSqlite(OnSqlite, StudyStoreContract):
    pass
