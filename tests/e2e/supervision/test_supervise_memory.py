"""A rank that the kernel kills for its memory is told from one that anybody else kills."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest

from e2e.supervision.node import Node

pytestmark = pytest.mark.e2e
GROUPS = Path("/sys/fs/cgroup/memory")
SCRIPT = """
    import os, signal, sys, time
    if os.environ["RANK"] == "1":
        if sys.argv[1:] == ["eat"]:
            eaten = [b"x" * (32 << 20) for _ in range(64)]
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.fixture
def group():
    """A memory group of 500 MB, version 1, where the tests may make one."""
    path = GROUPS / f"phalanx-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("needs a writable memory group of version 1")
    (path / "memory.limit_in_bytes").write_text(str(500 << 20))
    yield path
    with contextlib.suppress(OSError):
        path.rmdir()


@pytest.mark.parametrize(("word", "cause"), [("eat", "oom"), ("die", "rank_crash")])
def test_who_killed_it(tmp_path, group, word, cause):
    command = ["python", "train.py", word]
    with Node(tmp_path, SCRIPT, command=command, ranks=2) as node:
        supervisor = psutil.Process(node.process.pid)
        for process in [supervisor, *supervisor.children(recursive=True)]:
            (group / "cgroup.procs").write_text(str(process.pid))
        node.run()
        failure = node.failed()
        assert (failure.cause, failure.rank, failure.signal) == (cause, 1, 9)
        assert ("its cgroup is out of memory" in failure.message) == (word == "eat")
        node.ended()
        node.release()
