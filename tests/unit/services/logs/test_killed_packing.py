"""A process that packs is killed with SIGKILL at every step: no byte is lost, doubled or left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event

from phalanx.core.logs.grams import bitmap
from phalanx.core.logs.level_lines import count_levels
from phalanx.core.logs.packs import packed
from phalanx.core.logs.segments import LogSegment
from phalanx.services.logs import packing
from phalanx.services.logs.reading import Wanted, look_up, read
from phalanx.services.objects.log_files import LogFiles, compressed
from phalanx.services.queries.logs import assemble
from phalanx.store import open_store, telemetry
from phalanx.store.logs import packs

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]
RANKS, PARTS = 3, 12
HOUR = 3600 * 1_000_000


def platform_at(root: Path) -> Any:
    store = open_store(root / "db" / "x.sqlite")
    return SimpleNamespace(store=store, log_files=LogFiles(root / "logs"), may_act=lambda: None)


def fill(platform: Any) -> list[tuple[int, str]]:
    """Output of some ranks, cut within lines; returns the lines by rank."""
    texts = {
        rank: b"".join(b"rank %d prints line %d\n" % (rank, one) for one in range(40))
        for rank in range(RANKS)
    }

    def add(tx: Any) -> None:
        for part in range(PARTS):
            for rank, text in texts.items():
                size = len(text) // PARTS + 1
                data = text[part * size : (part + 1) * size]
                fresh = LogSegment(0, 1, 1, 0, rank, "out", part * size, 0, 1 + part, data)
                telemetry.add_log(tx, fresh)

    platform.store.transact(add)
    return [(rank, line) for rank in texts for line in texts[rank].decode().splitlines()]


def told(platform: Any) -> list[tuple[int, str]]:
    logs = read(platform, platform.store.view(lambda tx: look_up(tx, 1, Wanted())))
    lines, rest = assemble(logs.segments, logs.marks, logs.begun, logs.bounds, flush=True)
    assert not rest and not logs.more
    return sorted((one.rank, one.text) for one in lines)


def pack_small(monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    for name, value in (("PACK_BYTES", 1500), ("LOOSE_BYTES", 1)):
        if monkeypatch is None:
            setattr(packing, name, value)
        else:
            monkeypatch.setattr(packing, name, value)


def run_to(root: Path, last: int) -> None:
    """Pack until the step of this number, and be killed there: statements, commits, and calls on files."""
    pack_small()
    platform = platform_at(root)
    count = 0

    def step(*_: Any, **__: Any) -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(name: str) -> None:
        call = getattr(os, name)

        def counted(*given: Any, **named: Any) -> Any:
            step()
            found = call(*given, **named)
            step()
            return found

        setattr(os, name, counted)

    for name in ("open", "fsync", "rename"):
        around(name)
    engine = platform.store._engine
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, step)
    while packing.pack_job(platform, 1, 100):
        pass


def main(root: Path, stride: int) -> None:
    """Kill a process at every so many steps, each on its own copy; print the number of the last one."""
    # What packing needs is imported once, before the forks.
    bitmap(b"")
    count_levels(b"", 0, 0)
    compressed(packed(1, [], {}))
    last = 1 - stride
    while True:
        last += stride
        copy = root / str(last)
        (copy / "db").mkdir(parents=True)
        (copy / "db" / "x.sqlite").write_bytes((root / "db" / "x.sqlite").read_bytes())
        pid = os.fork()
        if not pid:
            try:
                run_to(copy, last)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            print(last)
            return


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.extras), 7])
def test_a_process_that_is_killed_while_it_packs_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    pack_small(monkeypatch)
    platform = platform_at(tmp_path)
    expected = sorted(fill(platform))
    platform.store.close()
    words = [sys.executable, __file__, str(tmp_path), str(stride)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_steps = int(done.stdout)
    assert num_steps > 40
    cut = 0
    for last in range(1, num_steps + 1, stride):
        root = tmp_path / str(last)
        platform = platform_at(root)
        assert told(platform) == expected, last
        before = list(root.glob("logs/*/*"))
        packing.logs_step(platform, 100 + 2 * HOUR)  # what was being written is given up
        while packing.pack_job(platform, 1, 100 + 2 * HOUR):
            pass
        assert told(platform) == expected, last
        named = {one.name for one in platform.store.view(lambda tx: packs.of_job(tx, 1))}
        left = {one.name for one in root.glob("logs/*/*")}
        assert left == named, last
        cut += any(one.name not in named for one in before)
        platform.store.close()
    assert cut > (3 if stride == 1 else 0)  # files that the killed processes left were deleted


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
