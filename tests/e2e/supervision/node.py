"""One real supervisor on this machine under a fake control plane."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

from phalanx.core.contract.job import WarmStart
from phalanx.core.jobs.desired import Action
from phalanx.launch import linux
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    LogReport,
    NodeReadyReport,
    Orders,
    RankFailedReport,
    RanksEndedReport,
    RanksStartedReport,
)
from phalanx.testing.control_plane import FakeControlPlane
from phalanx.testing.executors import gang_contract
from support.waiting import wait_until

HANG_BOUND_S = 60.0
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class Node:
    """Starts a supervisor for `script` (Python source) or `command`; use as a context."""

    def __init__(
        self,
        folder: Path,
        script: str = "",
        *,
        command=None,
        ranks=1,
        warm=False,
        env=None,
        imports=(),
        setup=None,
        framework="torch",
        role=None,
        **assignment,
    ):
        self.folder = folder
        self.marker = f"PHALANX_TEST_MARKER={uuid.uuid4().hex}"
        self.dir = folder / "n0"
        self.dir.mkdir(mode=0o700)
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(textwrap.dedent(script))
        self.plane = FakeControlPlane()
        self.port = 0
        name, value = self.marker.split("=")
        gang = gang_contract(
            7,
            attempt=2,
            framework=framework,
            ranks_per_node=ranks,
            grace_s=assignment.pop("grace_s", 10.0),
            checkpoint_dir=str(folder / "checkpoints"),
            **(role or {}),
        )
        fields = {
            "gang": gang,
            "node_rank": 0,
            "node_dir": str(self.dir),
            "workdir": str(self.code),
            "cwd": str(self.code),
            "command": command or [sys.executable, "train.py"],
            "env": {"PATH": PATH, "HOME": str(folder), name: value, **(env or {})},
            "cpus": 2,
            "server_url": self.plane.url,
            "token": self.plane.token,
            "setup": setup,
            "warm": WarmStart(enabled=warm, imports=tuple(imports)),
        }
        self.assignment = Assignment(**{**fields, **assignment})
        self.process = None

    def __enter__(self):
        path = self.dir / "assignment.json"
        path.write_text(self.assignment.model_dump_json())
        with open(self.dir / "supervisor.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phalanx.supervise", "--assignment", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.port = self.plane.wait_for(lambda: self.plane.reports(NodeReadyReport))[0].port
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                self.process.kill()
        self.process.wait()
        with contextlib.suppress(AssertionError):
            self.wait_gone()
        for pid in linux.tagged(self.marker):
            os.kill(pid, signal.SIGKILL)
        self.plane.away()

    # -- orders ------------------------------------------------------------------------------------

    def run(self, generation=0, restarts=0, last_step=0):
        """Order a generation; returns its RanksStartedReport."""
        self.plane.order(
            Orders(
                version=f"run:{generation}",
                action=Action.RUN,
                generation=generation,
                master_address="127.0.0.1",
                master_port=self.port,
                restarts=restarts,
                last_step=last_step,
            )
        )
        return self.started(generation)

    def order(self, action, generation=0, grace_left_s=0.0, version=""):
        version = f"{action}:{generation}:{grace_left_s}{version}"
        self.plane.order(
            Orders(version=version, action=action, generation=generation, grace_left_s=grace_left_s)
        )

    def release(self):
        """Release it and wait until it has left by itself."""
        self.order(Action.RELEASE)
        assert self.process.wait(HANG_BOUND_S) == 0

    # -- what happened -----------------------------------------------------------------------------

    def one(self, kind, generation):
        def found():
            return [r for r in self.plane.reports(kind) if r.generation == generation]

        return self.plane.wait_for(found)[0]

    def started(self, generation=0):
        return self.one(RanksStartedReport, generation)

    def failed(self, generation=0):
        return self.one(RankFailedReport, generation).failure

    def ended(self, generation=0):
        report = self.one(RanksEndedReport, generation)
        self.port = report.port
        return report

    def file(self, name, generation=0):
        return self.dir / f"g{generation:03d}" / name

    def output(self, rank=0, stream="out", generation=0):
        """What the rank's file holds."""
        return self.file(f"r{rank:05d}.{stream}", generation).read_text()

    def wait_output(self, text, rank=0, generation=0, times=1):
        """Until the rank has printed `text`."""
        path = self.file(f"r{rank:05d}.out", generation)
        wait_until(lambda: path.exists() and path.read_text().count(text) >= times)

    def shipped(self, rank=0, stream="out", generation=0):
        """The log bytes that arrived at the control plane, put together by offset."""
        import base64

        data = b""
        for one in self.plane.reports(LogReport):
            if (one.rank, one.stream, one.generation) == (rank, stream, generation):
                assert one.offset == len(data)
                data += base64.b64decode(one.data)
        return data

    def marked(self):
        """Living processes that carry this node's marker, and the reaper."""
        return linux.tagged(self.marker)

    def wait_gone(self):
        """Until nothing carries the marker any more."""
        wait_until(lambda: not self.marked(), "the end of every marked process")

    def reaper(self):
        """The reaper's process number."""
        return self.child_of(self.process.pid, "phalanx.launch.reaper")

    def warm_process(self):
        """The warm process's number."""
        return self.child_of(self.reaper(), "phalanx.train.warm_process.fork_server")

    def child_of(self, parent, word):
        for pid in linux.children(parent):
            if word in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
        raise AssertionError(f"no {word} below {parent}")
