from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.rig import Rig, open_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with open_rig(tmp_path / "home") as one:
        yield one
