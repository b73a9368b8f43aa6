"""The platform fixture for this folder, and a browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.platform.harness import platform
from e2e.ui.harness import chromium

__all__ = ["platform"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a module; each test has a context of its own."""
    with chromium() as one:
        yield one
