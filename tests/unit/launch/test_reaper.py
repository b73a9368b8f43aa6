"""The reaper's promise, and what happens without each half of it."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from phalanx.launch import linux
from phalanx.launch.identity import ProcessIdentity
from phalanx.launch.tree import ReaperProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration

# A reaper with one leg cut off: the patch runs before it does.
CRIPPLED = """
    import sys
    from phalanx.launch import reaper, linux
    reaper.make_group = lambda name: reaper.ControlGroup()  # it would make up for the missing part
    {patch}
    reaper.main(int(sys.argv[1]))
"""
DAEMON = textwrap.dedent("""
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(1)
            time.sleep(600)
        os._exit(0)
    os.wait()
    print("up", flush=True)
    time.sleep(600)
""")


@pytest.fixture
def marker(tmp_path):
    marker = f"PHALANX_TEST_MARKER={tmp_path.name}-{os.getpid()}"
    yield marker
    for pid in linux.tagged(marker):
        os.kill(pid, signal.SIGKILL)


def spawn_family(reaper, marker):
    """A process and its daemon below the reaper; returns when both are there."""
    name, value = marker.split("=", 1)
    read, write = os.pipe()
    stdin = os.open(os.devnull, os.O_RDONLY)
    argv = [sys.executable, "-I", "-S", "-c", DAEMON]
    reaper.spawn(argv, {name: value}, "/", [stdin, write, 2])
    os.close(stdin)
    os.close(write)
    with open(read) as output:
        assert output.readline() == "up\n"
    assert reaper.channel.receive().body["event"] == "spawned"
    return wait_until(lambda: len(linux.tagged(marker)) == 2 and linux.tagged(marker))


def crippled_reaper(patch):
    from phalanx.launch.wire import pair

    ours, theirs = pair()
    source = textwrap.dedent(CRIPPLED).format(patch=patch)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", source, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
    return ReaperProcess(process.pid, ours, process=process)


def test_nothing_survives_the_supervisors_end_of_the_channel(marker):
    reaper = ReaperProcess.start({})
    spawn_family(reaper, marker)
    reaper.channel.close()
    assert reaper.process.wait(30) == 0
    assert linux.tagged(marker) == []


def test_control_without_the_subreaper_a_daemon_survives(marker):
    reaper = crippled_reaper("linux.become_subreaper = lambda: None")
    spawn_family(reaper, marker)
    reaper.channel.close()
    reaper.process.wait(30)
    assert len(linux.tagged(marker)) == 1


def test_control_without_the_last_kill_all_but_the_bound_survive(marker):
    reaper = crippled_reaper("linux.kill_below = lambda *_: 0")
    spawn_family(reaper, marker)
    reaper.channel.close()
    reaper.process.wait(30)
    wait_until(lambda: len(linux.tagged(marker)) == 1)  # only the direct child was bound to it


def test_kill_spares_whom_it_was_told_to(marker):
    reaper = ReaperProcess.start({})
    spawn_family(reaper, marker)
    stdin = os.open(os.devnull, os.O_RDONLY)
    reaper.spawn(["/bin/sleep", "600"], {}, "/", [stdin, 2, 2], spare=True)
    os.close(stdin)
    spared = reaper.channel.receive().body["pid"]
    reaper.kill()
    events = []
    while not events or events[-1]["event"] != "killed":
        events.append(reaper.channel.receive().body)
    assert linux.tagged(marker) == []
    assert linux.entry(spared) is not None
    reaper.channel.close()
    reaper.process.wait(30)
    assert linux.entry(spared) is None


def test_what_cannot_be_executed_is_refused_with_its_name():
    reaper = ReaperProcess.start({})
    stdin = os.open(os.devnull, os.O_RDONLY)
    for argv, cwd in ((["/no/such"], "/"), (["/bin/true"], "/no/folder")):
        reaper.spawn(argv, {}, cwd, [stdin, 2, 2])
        body = reaper.channel.receive().body
        assert (body["event"], body["errno"]) == ("refused", 2)
        assert "/no/" in body["message"]
    os.close(stdin)
    reaper.channel.close()
    reaper.process.wait(30)


def test_a_process_name_outlives_its_number():
    child = subprocess.Popen(["/bin/sleep", "600"])
    name = ProcessIdentity.of(child.pid)
    assert name.is_alive()
    assert not ProcessIdentity(name.boot_id, name.pid, name.start_ticks + 1).is_alive()
    assert not ProcessIdentity("another boot", name.pid, name.start_ticks).is_alive()
    child.kill()
    wait_until(lambda: not name.is_alive())  # a zombie is dead
    child.wait()
    assert ProcessIdentity.of(child.pid) is None
