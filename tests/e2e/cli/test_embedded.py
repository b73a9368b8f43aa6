"""The control plane that verbs start by themselves: one for a home, found again, given up to `up`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.platform.harness import BIN
from support.verbs import run_verb
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


class Home:
    """A home without a control plane, and verbs on it."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "home"
        self.env = {**os.environ, "PHALANX_HOME": str(self.path), "NO_COLOR": "1"}

    def verb(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [BIN / "phalanx", *words], env=self.env, cwd=self.root, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str, str]:
        done = run_verb(words, self.env, self.root, 300)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def servers(self) -> list[psutil.Process]:
        """Control planes of this home, whoever started them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "phalanx.standalone" in words and str(self.path) in words:
                    found.append(process)
        return found

    def server_pid(self) -> int:
        return int(json.loads((self.path / "server.json").read_text())["pid"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    one = Home(tmp_path)
    yield one
    for process in one.servers():
        process.terminate()
    psutil.wait_procs(one.servers(), timeout=60)


@pytest.mark.extras
def test_verbs_at_once_start_one_control_plane_which_up_takes_over(home: Home):
    children = [home.verb("ps", "--json") for _ in range(4)]
    outcomes = [(child.communicate(timeout=120), child.returncode) for child in children]
    assert [(out, code) for (out, _), code in outcomes] == [("[]\n", 0)] * 4, outcomes
    assert len(home.servers()) == 1
    mode = (home.path / "server.json").stat().st_mode & 0o777
    assert (mode, home.path.stat().st_mode & 0o777) == (0o600, 0o700)
    before = home.server_pid()

    up = home.verb("up")
    try:
        wait_until(lambda: before != _pid_or(home, before), "the new one")
        assert home.server_pid() == up.pid
        assert not psutil.pid_exists(before) or before not in {p.pid for p in home.servers()}
        code, _, err = home.run("up")
        assert (code, "already has a control plane" in err) == (1, True)
        assert home.run("ps", "--json")[:2] == (0, "[]\n")
        words = ("--recommend", "--write", "--jobs", "20", "--nodes", "2")
        code, out, err = home.run("simulate", *words)
        assert (code, "recommended: " in out) == (0, True), err
        assert json.loads(home.run("scheduler", "policy", "show", "--json")[1])["stored"]
        code, _, err = home.run("scheduler", "policy", "set", "quick")
        assert (code, "known: throughput, fair, fifo, deadline" in err) == (1, True)
    finally:
        up.send_signal(signal.SIGINT)
        out, err = up.communicate(timeout=60)
    assert "replacing the background control plane" in err
    assert "/login?ticket=" in out
    assert not (home.path / "server.json").exists()


def _pid_or(home: Home, other: int) -> int:
    try:
        return home.server_pid()
    except (OSError, ValueError):
        return other


@pytest.mark.extras
def test_a_second_ctrl_c_leaves_the_job_alone(home: Home):
    """Ranks that ignore SIGTERM would keep the first one waiting for the whole grace."""
    script = home.root / "stubborn.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    follower = home.verb("run", "--no-warm", "stubborn.py")
    assert follower.stdout is not None and follower.stderr is not None
    assert follower.stdout.readline() == "ready\n"
    follower.send_signal(signal.SIGINT)
    for line in follower.stderr:
        if line.startswith("cancelling j-1"):
            break
    wait_until(
        lambda: json.loads(home.run("show", "1", "--json")[1])["goal"] == "cancel", "stopping"
    )
    follower.send_signal(signal.SIGINT)
    rest = follower.stderr.read()
    assert follower.wait(timeout=60) == 130
    assert "detached; j-1 is still stopping" in rest
    assert json.loads(home.run("show", "1", "--json")[1])["state"] == "stopping"
    code, out, _ = home.run("stop", "1", "--grace", "0")
    assert (code, out) == (0, "j-1 cancelled\n")
    assert home.run("wait", "1")[0] == 103


def test_a_command_in_a_pipe_prints_only_what_rank_0_wrote(home: Home):
    code, out, err = home.run("run", "-n", "2", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert (code, out) == (0, "0 of 2\n")
    assert "j-1 succeeded" in err
    assert home.run("logs", "1", "--rank", "1")[1] == "1 of 2\n"
    assert home.run("wait", "7")[0] == 102
    code, out, _ = home.run("run", "-d", "--", "sleep", "600")
    assert (code, out) == (0, "j-2\n")
    assert home.run("wait", "2", "--timeout", "0.1s")[0] == 101
    assert home.run("stop", "2", "--grace", "0")[:2] == (0, "j-2 cancelled\n")
    assert home.run("stop", "2")[:2] == (0, "j-2 cancelled\n")
    code, _, err = home.run("stop", "1")
    assert (code, "there is nothing to cancel" in err) == (1, True)
