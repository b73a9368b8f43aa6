"""The home that the command line trusts: its own, of this user, and never the original of a copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.client import embedded
from phalanx.cli.client.checkup import examine
from phalanx.errors import PermissionDenied
from phalanx.executors.local import LocalExecutor
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.clock import SystemClock
from phalanx.launch.files import folder_identity, try_lock
from phalanx.launch.identity import ProcessIdentity, SupervisorRecord, this_process
from phalanx.schemas.home import HomeLayout
from phalanx.standalone.pools import cluster_owner

pytestmark = pytest.mark.unit


def served(root: Path, **changes: object) -> Path:
    """A home with the server file of this process."""
    root.mkdir(mode=0o700, exist_ok=True)
    me = this_process()
    body = {
        "pid": me.pid,
        "boot_id": me.boot_id,
        "started_ticks": me.start_ticks,
        "url": "http://127.0.0.1:1",
        "token": "t",
        "version": "0",
        "home": folder_identity(root),
    }
    (root / embedded.SERVER_FILE).write_text(json.dumps(body | changes))
    return root


def test_the_server_of_a_copied_home_is_that_of_the_original(tmp_path: Path) -> None:
    home = served(tmp_path / "home")
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert embedded.find(home) is not None
    assert embedded.find(copy) is None
    moved = home.rename(tmp_path / "moved")
    assert embedded.find(moved) is not None


def test_without_a_folder_in_the_file_the_lock_decides(tmp_path: Path) -> None:
    home = served(tmp_path / "home", home="")
    assert embedded.find(home) is None
    lock = try_lock(home / embedded.HOME_LOCK)
    assert lock is not None
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert embedded.find(home) is not None and embedded.find(copy) is None
    os.close(lock)


@pytest.mark.parametrize("name", ["", embedded.SERVER_FILE], ids=["home", "server file"])
@pytest.mark.parametrize("change", ["writable", "foreign"])
def test_a_home_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    home = served(tmp_path / "home")
    path = home / name
    if change == "writable":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    said = "other users can write" if change == "writable" else "belongs to another user"
    with pytest.raises(PermissionDenied, match=said):
        embedded.find(home)
    with pytest.raises(PermissionDenied, match=said):
        embedded.begin(home)
    verdicts = {one.subject: one.verdict for one in examine(home)}
    assert verdicts["home"] == "FAIL" and verdicts["control plane"] == "FAIL"


def test_a_copied_home_kills_nothing_of_the_original(tmp_path: Path) -> None:
    """The record of a supervisor in a copy names live processes: those are the original's."""
    home, copy = HomeLayout(tmp_path / "home"), HomeLayout(tmp_path / "copy")
    node_dir = home.node_dir(1, 1, 0)
    node_dir.mkdir(parents=True)
    tag = f"copied-{os.getpid()}"
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "PHALANX_SUPERVISOR": tag},
    )
    try:
        while ProcessIdentity.of(rank.pid) is None:
            time.sleep(0.001)
        gone = ProcessIdentity("another boot", 1, 1)
        SupervisorRecord(gone, None, tag).write(node_dir)
        shutil.copytree(home.root, copy.root)
        ref = SupervisorRef(1, 1, 0)
        ours = LocalExecutor(copy, num_slots=1, clock=SystemClock())
        assert not ours.poll([ref])[0].alive
        ours.stop(ref)
        assert rank.poll() is None
        # The control: the original's executor does kill what a lost supervisor left behind.
        theirs = LocalExecutor(home, num_slots=1, clock=SystemClock())
        theirs.poll([ref])
        assert rank.wait(timeout=60) == -signal.SIGKILL
    finally:
        rank.kill()
        rank.wait()


def test_a_copied_home_has_a_name_of_its_own_in_clusters(tmp_path: Path) -> None:
    """By the name the attempts of a home are found and stopped in a Ray cluster."""
    home, copy = HomeLayout(tmp_path / "home"), HomeLayout(tmp_path / "copy")
    (home.root / "pools").mkdir(parents=True)
    name = cluster_owner(home)
    assert cluster_owner(home) == name
    shutil.copytree(home.root, copy.root)
    assert cluster_owner(copy) == cluster_owner(copy) != name
    assert cluster_owner(home) == name
    # Moved, or restored in its place or in another one after it was lost, a home keeps its name.
    moved = HomeLayout(home.root.rename(tmp_path / "moved"))
    assert cluster_owner(moved) == name
    shutil.copytree(moved.root, home.root)
    shutil.rmtree(moved.root)
    assert cluster_owner(home) == name
    shutil.copytree(home.root, tmp_path / "aside")
    shutil.rmtree(home.root)
    (tmp_path / "aside").rename(home.root)
    assert cluster_owner(home) == name


def test_the_name_that_an_earlier_release_stored_is_kept(tmp_path: Path) -> None:
    home = HomeLayout(tmp_path / "home")
    (home.root / "pools").mkdir(parents=True)
    (home.root / "pools" / "owner").write_text("0123abcd\n")
    assert cluster_owner(home) == cluster_owner(home) == "0123abcd"
