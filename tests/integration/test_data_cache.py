"""The node's cache under real processes: one fetch each, within its bound, whoever is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from phalanx.errors import DataUnavailable
from phalanx.train.data.readers import cache as cache_module
from phalanx.train.data.readers.cache import NodeCache
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SIZE = 10_000
FORK = multiprocessing.get_context("fork")


def content(key: str) -> bytes:
    return random.Random(key).randbytes(SIZE)


def filler(key: str, log: Path | None = None) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        with path.open("r+b") as out:
            out.write(content(key))
        if log is not None:
            with log.open("a") as lines:
                lines.write(key + "\n")

    return fill


def _read_at_random(directory: str, seed: int, num_keys: int, slots: int, bad: Event) -> None:
    cache, rng = NodeCache(directory, slots * SIZE), random.Random(seed)
    for _ in range(60):
        key = f"k{rng.randrange(num_keys)}"
        file = cache.open(key, SIZE, filler(key))
        if file.read_at(0, SIZE + 1) != content(key) or cache.used_bytes() > slots * SIZE:
            bad.set()
        file.close()


def _start(target: Callable[..., None], *args: object) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=target, args=args, daemon=True)
    child.start()
    return child


def test_many_processes_stay_within_the_bound_and_read_what_was_stored(tmp_path: Path) -> None:
    bad = FORK.Event()
    children = [_start(_read_at_random, str(tmp_path), seed, 12, 5, bad) for seed in range(4)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert not bad.is_set()
    assert NodeCache(tmp_path, 5 * SIZE).used_bytes() <= 5 * SIZE


def _open_all(directory: str, log: str, go: Event) -> None:
    go.wait(30)
    for key in "abcdef":
        NodeCache(directory, 100 * SIZE).open(key, SIZE, filler(key, Path(log))).close()


def test_an_object_is_fetched_once_for_the_node(tmp_path: Path) -> None:
    go, log = FORK.Event(), tmp_path / "log"
    children = [_start(_open_all, str(tmp_path / "c"), str(log), go) for _ in range(4)]
    go.set()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(log.read_text().split()) == list("abcdef")


def _stuck_fill(directory: str, half: Event) -> None:
    def fill(path: Path) -> None:
        with path.open("r+b") as out:
            out.write(content("k")[: SIZE // 2])
        half.set()
        signal.pause()

    NodeCache(directory, 2 * SIZE).open("k", SIZE, fill)


def test_killed_in_mid_fill_leaves_nothing_that_counts(tmp_path: Path) -> None:
    for _ in range(5):
        half = FORK.Event()
        child = _start(_stuck_fill, str(tmp_path), half)
        assert half.wait(30)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(30)
    assert list(tmp_path.glob("*.part"))  # the damage is there, and is nobody's
    cache = NodeCache(tmp_path, 2 * SIZE)
    first, second = (cache.open(key, SIZE, filler(key)) for key in ("a", "b"))
    assert cache.used_bytes() == 2 * SIZE  # the debris was removed to make room
    first.close()
    second.close()
    file = cache.open("k", SIZE, filler("k"))
    assert file.read_at(0, SIZE) == content("k")
    file.close()


def test_who_waits_for_a_killed_fetcher_takes_over(tmp_path: Path) -> None:
    half = FORK.Event()
    child = _start(_stuck_fill, str(tmp_path), half)
    assert half.wait(30)
    bad = FORK.Event()
    waiting = _start(_wait_and_read, str(tmp_path), bad)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    waiting.join(30)
    assert waiting.exitcode == 0
    assert not bad.is_set()


def test_who_waits_for_a_fetcher_does_not_wait_for_its_readers(tmp_path: Path) -> None:
    bad = FORK.Event()
    waiting: list[multiprocessing.process.BaseProcess] = []

    def fill(path: Path) -> None:
        waiting.append(_start(_wait_and_read, str(tmp_path), bad))
        wait_until(lambda: _blocked_in_flock(waiting[0].pid))
        filler("k")(path)

    held = NodeCache(tmp_path, 2 * SIZE).open("k", SIZE, fill)
    waiting[0].join(30)
    assert waiting[0].exitcode == 0
    assert not bad.is_set()
    held.close()


def _blocked_in_flock(pid: int | None) -> bool:
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any("FLOCK" in row and str(pid) in row for row in rows)


def _wait_and_read(directory: str, bad: Event) -> None:
    file = NodeCache(directory, 2 * SIZE).open("k", SIZE, filler("k"))
    if file.read_at(0, SIZE) != content("k"):
        bad.set()


def test_least_recently_opened_goes_first_and_open_files_stay(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 3 * SIZE, wait_s=0.0)
    log = tmp_path / "log"
    held = cache.open("held", SIZE, filler("held", log))
    for key in ("x", "y", "x", "z"):
        cache.open(key, SIZE, filler(key, log)).close()
    cache.open("x", SIZE, filler("x", log)).close()
    cache.open("held", SIZE, filler("held", log)).close()
    assert log.read_text().split() == ["held", "x", "y", "z"]
    others = [cache.open(key, SIZE, filler(key)) for key in ("p", "q")]
    with pytest.raises(DataUnavailable, match="in use"):
        cache.open("r", SIZE, filler("r"))
    assert held.path.exists()
    closed: list[int] = []
    cache.open("r", SIZE, filler("r"), lambda: closed.append(others[0].close() or 1)).close()  # type: ignore[func-returns-value]
    assert closed == [1]
    for file in (held, *others):
        file.close()


def test_without_the_readers_locks_an_open_file_would_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cache_module.fcntl.flock

    def only_exclusive(fd: int, how: int) -> None:
        if how != cache_module.fcntl.LOCK_SH:
            real(fd, how)

    monkeypatch.setattr(cache_module.fcntl, "flock", only_exclusive)
    cache = NodeCache(tmp_path, 2 * SIZE, wait_s=0.0)
    held = cache.open("held", SIZE, filler("held"))
    for key in ("x", "y"):
        cache.open(key, SIZE, filler(key)).close()
    assert not held.path.exists()
    held.close()


def test_a_failed_or_short_fill_leaves_nothing(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 2 * SIZE)

    def broken(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.open("k", SIZE, broken)
    with pytest.raises(DataUnavailable, match="3 bytes"):
        cache.open("k", SIZE, lambda path: path.write_bytes(b"abc") and None)
    assert cache.used_bytes() == 0
    with pytest.raises(DataUnavailable, match="does not fit"):
        cache.open("k", 3 * SIZE, filler("k"))
