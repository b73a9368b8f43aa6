"""`phalanx exec` and `phalanx port-forward` on a real platform: commands, input, terminals, ports, ends."""

import os
import pty
import re
import select
import signal
import socket
import subprocess

import psutil
import pytest

from e2e.platform.harness import BIN
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
KEEP_WARM = 0


@pytest.fixture
def started(platform):
    """Starts `phalanx`, and closes its pipes in the end."""
    made = []

    def start(*args, **options):
        command = [BIN / "phalanx", *map(str, args)]
        options = {"stdin": subprocess.DEVNULL, "env": platform.env, **options}
        made.append(subprocess.Popen(command, **options))
        return made[-1]

    yield start
    for process in made:
        with process:
            process.kill()


@pytest.fixture(scope="module")
def job(platform):
    """Two ranks that do nothing for long, the first of which answers on a port."""
    script = (
        "import os, sys, time, socket\n"
        "if os.environ['RANK'] == '0':\n"
        "    s = socket.create_server(('127.0.0.1', 0)); print('PORT', s.getsockname()[1], flush=True)\n"
        "    while True:\n"
        "        c, _ = s.accept(); data = b''\n"
        "        while (more := c.recv(65536)): data += more\n"
        "        c.sendall(b'got %d ' % len(data) + data[-5:]); c.close()\n"
        "time.sleep(600)\n"
    )
    label = platform.submit(
        {
            "run": ["python", "-c", script],
            "framework": "none",
            "resources": {"slots_per_node": 2},
            "env": {"COLOR": "blue", "PHALANX_ACCEPT": "all"},
        }
    )
    platform.wait_state(label, "running")
    yield label
    platform.run("stop", label, "--grace", "0s")


def enter(platform, *args, data=b"", **options):
    return subprocess.run(
        [BIN / "phalanx", *map(str, args)],
        env=platform.env,
        cwd=platform.root,
        input=data,
        capture_output=True,
        timeout=200,
        **options,
    )


def test_a_command_has_the_environment_of_its_rank_its_input_and_its_exit_code(platform, job):
    text = "echo $RANK $COLOR; pwd; wc -c; echo problem >&2; exit 7"
    done = enter(platform, "exec", job, "--rank", 1, "--", "sh", "-c", text, data=b"x" * 300_000)
    assert done.returncode == 7, done.stderr
    first, folder, count = done.stdout.decode().splitlines()
    assert (first, count.strip(), done.stderr) == ("1 blue", "300000", b"problem\n")
    assert f"/jobs/{job}/" in folder
    hidden = enter(platform, "exec", job, "--", "env").stdout.decode()
    assert "PHALANX_REPORT_FILE" not in hidden and "RANK=0" in hidden


def test_much_output_arrives_whole_and_in_order(platform, job):
    done = enter(platform, "exec", job, "--", "seq", "1", "300000")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [str(one) for one in range(1, 300_001)]


def test_what_cannot_be_started_is_said_and_the_job_goes_on(platform, job):
    done = enter(platform, "exec", job, "--", "no-such-program")
    assert done.returncode == 1
    assert b"the command was not started: No such file or directory" in done.stderr
    assert b"has no rank 9" in enter(platform, "exec", job, "--rank", 9, "--", "true").stderr
    assert platform.show(job).state == "running"
    assert platform.show(job).attempts == 1


def test_a_terminal_shows_its_size_passes_keys_and_ends_with_the_shell(platform, job):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [BIN / "phalanx", "exec", job, "-t", "--", "sh"],
        env={**platform.env, "PS1": "> ", "COLUMNS": "101", "LINES": "33"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def shows(text):
        nonlocal seen
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        return text in seen

    os.write(ours, b"stty size\n")
    wait_until(lambda: shows(b"33 101"), "the size")
    os.write(ours, b"sleep 600\n")
    wait_until(lambda: shows(b"sleep 600"))
    seen = b""
    os.write(ours, b"\x03")  # Ctrl-C ends the sleep, not the shell
    os.write(ours, b"echo st''ill; exit 5\n")
    wait_until(lambda: shows(b"still"))
    assert process.wait(60) == 5
    os.close(ours)


def test_a_client_that_is_killed_ends_its_command(platform, job, started):
    script = "echo begun $$; sleep 601"
    process = started("exec", job, "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    assert psutil.pid_exists(pid)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    wait_until(lambda: not psutil.pid_exists(pid), "the end of the command")
    assert platform.show(job).state == "running"


def test_a_port_of_the_node_is_reached_and_its_absence_is_said(platform, job, started):
    found = wait_until(lambda: re.search(r"PORT (\d+)", platform.output(job)))
    process = started(
        "port-forward",
        job,
        f"0:{found[1]}",
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    local = int(re.search(r"127\.0\.0\.1:(\d+)", line)[1])
    for size in (5, 200_000):
        with socket.create_connection(("127.0.0.1", local), 60) as connection:
            connection.sendall(b"x" * (size - 5) + b"hello")
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(65536):
                answer += more
        assert answer == b"got %d hello" % size
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_a_command_ends_with_the_ranks(platform, started):
    label = platform.submit(
        {"run": "sleep 600", "framework": "none", "resources": {"slots_per_node": 1}}
    )
    platform.wait_state(label, "running")
    process = started(
        "exec",
        label,
        "--",
        "sh",
        "-c",
        "echo begun $$; sleep 602",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    platform.run("stop", label, "--grace", "0s")
    assert process.wait(100) != 0
    assert not psutil.pid_exists(pid)
