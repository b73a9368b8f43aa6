"""Control groups: made where the system allows it, absent without a fuss elsewhere."""

import os
import select
import signal
import subprocess
import sys

import pytest

from phalanx.launch import linux
from phalanx.launch.cgroup import (
    NO_GROUP,
    NOT_DELEGATED,
    CgroupV2,
    ControlGroup,
    make_group,
    oom_kills,
    why_no_limits,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("mountinfo", "cgroup"),
    [
        ("", "0::/user\n"),  # no version 2 mount
        ("29 24 0:26 / {root} rw - cgroup2 cgroup2 rw\n", "4:memory:/x\n"),  # not in a group
        ("29 24 0:26 / /nowhere rw - cgroup2 cgroup2 rw\n", "0::/\n"),  # not ours to write
    ],
)
def test_no_group_where_none_can_be_made(tmp_path, mountinfo, cgroup):
    (tmp_path / "mountinfo").write_text(mountinfo.format(root=tmp_path / "root"))
    (tmp_path / "cgroup").write_text(cgroup)
    assert not isinstance(make_group("g", tmp_path), CgroupV2)


def test_a_folder_that_cannot_be_killed_is_not_a_group(tmp_path):
    root = tmp_path / "root"
    (root / "user").mkdir(parents=True)
    (tmp_path / "mountinfo").write_text(f"29 24 0:26 / {root} rw shared:4 - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/user\n")
    assert not isinstance(make_group("g", tmp_path), CgroupV2)
    assert list((root / "user").iterdir()) == []


def test_killing_a_group_kills_what_escaped_its_parent():
    group = make_group(f"phalanx-test-{os.getpid()}")
    if not isinstance(group, CgroupV2):
        pytest.skip("needs a writable version 2 control group: run as root or in a delegated unit")
    # The child leaves a grandchild in a session of its own and dies.
    script = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True)\n"
        "os.close(1)\n"
        "import signal; signal.pause()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, preexec_fn=group.join
    )
    assert child.stdout is not None
    escaped = int(child.stdout.read())
    child.stdout.close()
    child.wait(60)
    watch = os.pidfd_open(escaped)
    os.kill(escaped, 0)
    group.kill()
    # A pidfd is readable once its process is gone: no polling, the timeout only ends a hang.
    assert select.select([watch], [], [], 60)[0]
    os.close(watch)
    entry = linux.entry(escaped)
    assert entry is None or entry.gone
    group.remove()
    assert not group.path.exists()


def test_the_kernel_enforces_the_limits_of_a_group():
    if why := why_no_limits():
        pytest.skip(f"{why}: run it with `systemd-run --user --scope -p Delegate=yes make test`")
    name = f"phalanx-test-{os.getpid()}"
    group = make_group(name)
    assert group.limit(1, 64 << 20) == ""
    try:
        words = [sys.executable, "-c", "held = bytearray(256 << 20); print(len(held))"]
        done = subprocess.run(words, preexec_fn=group.join, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
        assert oom_kills(name=name) == 1
    finally:
        group.remove()


def test_kills_for_memory_are_counted_in_either_version(tmp_path):
    assert oom_kills(tmp_path) is None
    root, old = tmp_path / "root", tmp_path / "old"
    for folder in (root / "user", old / "user"):
        folder.mkdir(parents=True)
    mounts = (
        "29 24 0:26 / {} rw - cgroup2 cgroup2 rw\n30 24 0:27 / {} rw - cgroup cgroup rw,memory\n"
    )
    (tmp_path / "mountinfo").write_text(mounts.format(root, old))
    (tmp_path / "cgroup").write_text("4:cpu,memory:/user\n1:name=systemd:/x\n0::/user\n")
    assert oom_kills(tmp_path) is None
    (old / "user" / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    )
    assert oom_kills(tmp_path) == 3
    (root / "user" / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2


def groups(tmp_path, *, own="", above=""):
    """A version 2 hierarchy in a folder: a group and the one above it, with what each passes on."""
    root = tmp_path / "root"
    (root / "slice" / "scope").mkdir(parents=True)
    for group, passed in ((root / "slice", above), (root / "slice" / "scope", own)):
        (group / "cgroup.subtree_control").write_text(passed)
        (group / "cgroup.procs").write_text("")
    (tmp_path / "mountinfo").write_text(f"29 24 0:26 / {root} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/slice/scope\n")
    return root


class TestLimits:
    def test_limits_are_written_where_the_group_above_passes_controllers_on(self, tmp_path):
        root = groups(tmp_path, above="cpu memory pids")
        assert why_no_limits(tmp_path) == ""
        made = root / "slice" / "g"
        made.mkdir()
        (made / "cgroup.kill").write_text("")
        group = CgroupV2(made)
        assert group.limit(3, 1 << 30) == ""
        assert (made / "cpu.max").read_text() == "300000 100000"
        assert (made / "memory.max").read_text() == str(1 << 30)
        assert oom_kills(tmp_path, "g") is None
        (made / "memory.events").write_text("oom 2\noom_kill 2\n")
        assert oom_kills(tmp_path, "g") == 2

    @pytest.mark.parametrize("above", ["", "memory pids", "cpu"])
    def test_where_controllers_are_not_delegated_the_reason_is_said(self, tmp_path, above):
        groups(tmp_path, above=above)
        assert why_no_limits(tmp_path) == NOT_DELEGATED

    def test_a_group_without_controllers_says_that_limits_are_not_enforced(self, tmp_path):
        # As in the kernel: files of a controller that is not there cannot be created.
        assert CgroupV2(tmp_path / "gone").limit(1, 0) == NOT_DELEGATED
        assert ControlGroup().limit(1, 0) == NO_GROUP

    def test_without_version_2_there_are_no_limits(self, tmp_path):
        (tmp_path / "mountinfo").write_text("")
        (tmp_path / "cgroup").write_text("0::/\n")
        assert why_no_limits(tmp_path) == NO_GROUP

    def test_the_group_is_made_where_it_can_limit(self, tmp_path, monkeypatch):
        root = groups(tmp_path, above="cpu memory")
        monkeypatch.setattr("phalanx.launch.cgroup.os.access", lambda path, mode: True)
        group = make_group("phalanx-1", tmp_path)
        assert isinstance(group, CgroupV2)
        assert group.path == root / "slice" / "phalanx-1"
