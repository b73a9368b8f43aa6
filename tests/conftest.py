"""What holds for every test."""

import functools
import gc
import signal
import warnings
from collections.abc import Iterator

import pytest
import typer.main
import typer.testing
from hypothesis import settings

from support import databases, leaks

# How long an example takes says more about the machine than about the code.
settings.register_profile("phalanx", deadline=None)
settings.load_profile("phalanx")

# Typer makes the commands of an application anew for each call: a tenth of a second for all verbs.
typer.main.get_command = functools.cache(typer.main.get_command)
typer.testing._get_command = typer.main.get_command

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would every program that
# a test starts and interrupts. A handler here is the default again in whatever is executed.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--database postgresql` runs the tests of the control plane on PostgreSQL."""
    parser.addoption("--database", choices=("sqlite", "postgresql"), default="sqlite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of optional frameworks may leave what those frameworks leave: Ray does not close its files."""
    on_postgres = config.getoption("--database") == "postgresql"
    for item in items:
        if on_postgres and item.get_closest_marker("sqlite"):
            item.add_marker(pytest.mark.skip(reason="of SQLite only"))
        if item.get_closest_marker("extras"):
            item.add_marker(pytest.mark.leaves("frameworks of others"))
            ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.PostgresServer]:
    """A real PostgreSQL server for the whole run."""
    server = databases.PostgresServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def chosen_database(request: pytest.FixtureRequest) -> Iterator[None]:
    """Open PostgreSQL in place of SQLite files with `--database postgresql`."""
    if request.config.getoption("--database") == "sqlite" or request.node.get_closest_marker(
        "sqlite"
    ):
        yield
        return
    with databases.instead_of_files(request.getfixturevalue("postgres")):
        yield


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_not_searched() -> None:
    """Keep the garbage collector from what modules and earlier tests hold: it took a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks(chosen_database: None, request: pytest.FixtureRequest) -> Iterator[None]:
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
