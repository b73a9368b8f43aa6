"""A real platform per module: `phalanx up` in a home of its own, driven through the CLI."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from phalanx.kit.text import parse_job_label
from phalanx.schemas.api.jobs import JobView
from phalanx.sdk import PhalanxClient
from support.verbs import run_verb
from support.waiting import wait_until

BIN = Path(sys.executable).parent
HERE = Path(__file__).resolve().parent
GUARD_S = 120.0


class Platform:
    """One home with a control plane that a test may kill and start again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.env = {
            **os.environ,
            "PHALANX_HOME": str(self.home),
            "NO_COLOR": "1",
            "PROBE_OUT": str(root / "probe"),
        }
        self.slots = ("--slots", "4")
        self.process: subprocess.Popen[bytes] | None = None
        self._client: tuple[str, PhalanxClient] | None = None

    def up(self) -> None:
        """Start the control plane and wait until it answers."""
        with (self.root / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "phalanx", "up", *self.slots],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "the control plane")

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.root / "up.log").read_text())
        file = self.home / "server.json"
        return file.exists() and json.loads(file.read_text())["pid"] == self.server_pid()

    def server_pid(self) -> int:
        """The process that holds the home: `phalanx up` itself or its child."""
        assert self.process is not None
        file = self.home / "server.json"
        pid = json.loads(file.read_text())["pid"] if file.exists() else self.process.pid
        family = {self.process.pid}
        with contextlib.suppress(psutil.NoSuchProcess):
            family |= {p.pid for p in psutil.Process(self.process.pid).children(recursive=True)}
        return pid if pid in family else self.process.pid

    def down(self) -> None:
        """End the control plane politely, and every job that is left with it."""
        for job in self.jobs():
            if not job.is_terminal:
                self.run("stop", job.label, "--grace", "0s", check=False)
        self._forget_client()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def run(self, *args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One verb, to its end."""
        done = run_verb(args, self.env, self.root, GUARD_S * 2)
        if check and done.returncode != 0:
            raise AssertionError(f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def client(self) -> PhalanxClient:
        """A typed client of whoever is in charge now."""
        server = json.loads((self.home / "server.json").read_text())
        return PhalanxClient(server["url"], server["token"], ca=server["ca"])

    def _kept_client(self) -> PhalanxClient:
        """The same for polls, which are many: one for each control plane."""
        text = (self.home / "server.json").read_text()
        if self._client is None or self._client[0] != text:
            self._forget_client()
            server = json.loads(text)
            client = PhalanxClient(server["url"], server["token"], ca=server["ca"])
            self._client = (text, client)
        return self._client[1]

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client[1].close()
            self._client = None

    def jobs(self) -> list[JobView]:
        """All jobs."""
        return self._kept_client().jobs().jobs

    def submit(self, spec: dict[str, Any]) -> str:
        """Submit a spec whose code is this folder; returns the job's label."""
        file = self.root / f"job{len(list(self.root.glob('job*.json')))}.json"
        file.write_text(json.dumps({"schema": 1, "workdir": str(HERE), **spec}))
        return self.run("submit", file).stdout.split()[-1]

    def show(self, job: str) -> JobView:
        """The job as the API shows it."""
        num = parse_job_label(job)
        assert num is not None
        return self._kept_client().job(num)

    def output(self, job: str) -> str:
        """What the ranks have written so far, a line each."""
        num = parse_job_label(job)
        assert num is not None
        return "".join(f"{line.text}\n" for line in self._kept_client().logs(num).lines)

    def wait_state(self, job: str, *states: str) -> JobView:
        """Wait until the job is in one of `states`; fail when it ends otherwise."""
        num, after = parse_job_label(job), 0
        assert num is not None

        def reached() -> JobView | None:
            nonlocal after
            view = self.show(job)
            if view.state in states:
                return view
            assert not view.is_terminal, f"{job} is {view.state}\n{view.failure}"
            # Every state comes with an event: to ask all the time would cost the job its processors.
            after = self._kept_client().events(num, after=after, wait_s=5.0).cursor
            return None

        try:
            return wait_until(reached, f"{job} in {states}")
        except AssertionError as error:
            for verb in ("show", "why", "logs"):
                error.add_note(self.run(verb, job, check=False).stdout[-4000:])
            raise

    def wait_steps(self, count: int, out: Path) -> None:
        """Wait until the probe has completed `count` steps in all."""
        steps = Path(f"{out}.steps")
        wait_until(
            lambda: steps.exists() and len(steps.read_text().splitlines()) >= count,
            f"{count} steps",
        )

    def rank_pids(self, job: str) -> dict[int, int]:
        """The live ranks' pids, once all are known; those of a generation that is over are not."""

        def known() -> dict[int, int] | None:
            view = self.show(job)
            assert not view.is_terminal, f"{job} is {view.state}: too late for its ranks"
            found = {rank.rank: rank.pid for rank in view.ranks or () if rank.pid}
            alive = all(psutil.pid_exists(pid) for pid in found.values())
            return found if found and len(found) == len(view.ranks or ()) and alive else None

        found: dict[int, int] = wait_until(known, "rank pids")
        return found


def probe_spec(out: Path, *flags: str, ranks: int = 3, **spec: Any) -> dict[str, Any]:
    """A job that runs `training.py`."""
    return {
        "name": "probe",
        "run": " ".join([str(BIN / "python"), "training.py", *flags]),
        "resources": {"slots_per_node": ranks},
        "checkpoint": {"every": "1s"},
        "recovery": {"rank_crash": {"count": 20, "per": "1h"}},
        "env": {"PROBE_OUT": str(out)},
        **spec,
    }


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal one process that this test found."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def corrupt_newest(platform: Platform, job: str) -> None:
    """Stop the ranks of a job, break its newest checkpoint, kill rank 0 and let the others go on."""
    ranks = platform.rank_pids(job)
    for pid in ranks.values():
        psutil.Process(pid).suspend()
    folder = Path(platform.show(job).checkpoint_dir or "")
    manifests = sorted(folder.rglob("step-*/MANIFEST.json"), key=lambda one: one.parent.name)
    files = [one for one in manifests[-1].parent.rglob("*") if one.is_file()]
    shard = max(
        (one for one in files if one.name != "MANIFEST.json"), key=lambda one: one.stat().st_size
    )
    broken = bytearray(shard.read_bytes())
    broken[len(broken) // 2] ^= 4
    shard.write_bytes(broken)
    kill(ranks[0])
    for pid in ranks.values():
        if psutil.pid_exists(pid):
            psutil.Process(pid).resume()


def family(pid: int) -> list[psutil.Process]:
    """A process and everything below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those still alive, zombies apart."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


@pytest.fixture(scope="module")
def platform(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A running platform, on PostgreSQL with that option; left jobs are stopped at the end.

    A module whose jobs are no Python has `KEEP_WARM = 0`: a warm process for them only imports torch.
    """
    one = Platform(tmp_path_factory.mktemp("platform"))
    if (keep_warm := getattr(request.module, "KEEP_WARM", None)) is not None:
        one.slots = (*one.slots, "--keep-warm", str(keep_warm))
    if request.config.getoption("--database") == "postgresql":
        name = f"platform_{request.module.__name__.rpartition('.')[2]}"
        url = request.getfixturevalue("postgres").create(name, empty=False)
        one.env["PHALANX__DATABASE__URL"] = url
    one.up()
    yield one
    one.down()
