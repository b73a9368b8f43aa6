"""What holds for every test."""

import gc
import signal
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support import leaks

# How long an example takes says more about the machine than about the code.
settings.register_profile("phalanx", deadline=None)
settings.load_profile("phalanx")

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would every program that
# a test starts and interrupts. A handler here is the default again in whatever is executed.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of optional frameworks may leave what those frameworks leave: Ray does not close its files."""
    for item in items:
        if item.get_closest_marker("extras"):
            item.add_marker(pytest.mark.leaves("frameworks of others"))
            ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves threads, processes, open files, variables or another directory behind."""
    before = leaks.holdings()
    yield
    if request.node.get_closest_marker("leaves"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        return
    found = leaks.leaked(before)
    assert not found, f"the test leaves behind: {'; '.join(found)}"
