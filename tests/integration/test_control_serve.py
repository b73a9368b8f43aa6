"""A real server on a real socket: ready, loops awake, and its three ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.rig import spec
from phalanx.errors import StoreCorrupt
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.sdk import PhalanxClient
from phalanx.server.app import StopCause, serve
from phalanx.server.settings import Settings
from phalanx.testing.executors import FakeExecutor
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one


def run(
    root: Path,
    sock: socket.socket,
    work: Callable[[PhalanxClient], None],
    settings: Settings,
    *,
    ask: bool,
) -> StopCause:
    """Serve while `work` runs in a thread; then ask it to stop, or let it leave by itself."""
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    trouble: list[BaseException] = []

    async def main() -> StopCause:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def client() -> None:
            try:
                with PhalanxClient(url, "t") as one:
                    work(one)
            except BaseException as error:
                trouble.append(error)
            finally:
                if ask or trouble:
                    loop.call_soon_threadsafe(stop.set)

        async with asyncio.timeout(60):
            return await serve(
                home=HomeLayout(root),
                executor=FakeExecutor(),
                sock=sock,
                url=url,
                token="t",
                settings=settings,
                stop=stop,
                on_ready=threading.Thread(target=client).start,
            )

    cause = asyncio.run(main())
    if trouble:
        raise trouble[0]
    return cause


def test_loops_are_woken_and_a_waiting_client_does_not_hold_the_end_up(
    tmp_path: Path, sock: socket.socket
) -> None:
    slow = Settings.model_validate(
        {"loops": {"scheduler_tick_s": 60, "dispatcher_tick_s": 60, "timers_tick_s": 60}}
    )
    waiting: list[threading.Thread] = []

    def work(client: PhalanxClient) -> None:
        assert client.is_healthy() and client.info().num_live_jobs == 0
        client.submit(SubmitRequest(spec=spec()))
        # No tick comes in time: only being woken takes the job from the queue to its launch.
        wait_until(lambda: client.job(1).state == "starting")
        client.stop(1, grace_s=0)
        other = PhalanxClient(client.url, "t")
        waiting.append(threading.Thread(target=lambda: other.events(1, after=99, wait_s=30)))
        waiting[0].start()

    assert run(tmp_path, sock, work, slow, ask=True) is StopCause.ASKED
    waiting[0].join(20)
    assert not waiting[0].is_alive()


def test_it_leaves_when_nobody_needs_it(tmp_path: Path, sock: socket.socket) -> None:
    def work(client: PhalanxClient) -> None:
        assert client.hello().keep_alive_s == 0.3

    settings = Settings(idle_exit_s=0.3)
    assert run(tmp_path, sock, work, settings, ask=False) is StopCause.IDLE


def test_a_live_job_keeps_it(tmp_path: Path, sock: socket.socket) -> None:
    """The guard of the test above, off: with a job in the queue it stays until it is asked."""

    def work(client: PhalanxClient) -> None:
        client.submit(SubmitRequest(spec=spec()))
        before = time.monotonic()
        wait_until(lambda: time.monotonic() - before > 1.5)

    assert run(tmp_path, sock, work, Settings(idle_exit_s=1.0), ask=True) is StopCause.ASKED


@pytest.mark.sqlite
def test_a_corrupt_database_is_said_before_anything_answers(
    tmp_path: Path, sock: socket.socket
) -> None:
    path = HomeLayout(tmp_path).database_file
    path.parent.mkdir()
    path.write_text("garbage")
    with pytest.raises(StoreCorrupt, match="not a database"):
        run(tmp_path, sock, lambda client: None, Settings(), ask=True)
    assert path.read_text() == "garbage"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX__LOOPS__POLL_TICK_S", "0.25")
    monkeypatch.setenv("PHALANX__IDLE_EXIT_S", "7")
    settings = Settings()
    assert (settings.loops.poll_tick_s, settings.idle_exit_s) == (0.25, 7.0)


def test_it_leaves_when_its_home_was_deleted(tmp_path: Path, sock: socket.socket) -> None:
    root = tmp_path / "home"
    HomeLayout(root).database_file.parent.mkdir(parents=True)

    def delete(client: PhalanxClient) -> None:
        wait_until(client.is_healthy)
        root.rename(tmp_path / "gone")

    settings = Settings(idle_exit_s=3600)
    assert run(root, sock, delete, settings, ask=False) is StopCause.IDLE
