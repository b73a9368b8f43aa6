"""Start a gang of ranks on loopback with the launcher's environment, kill it, start it again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.contract import records as reports
from phalanx.core.training.ledger import Consumed, GenerationLedger, audit
from phalanx.launch.ports import free_port

HANG_GUARD_S = 240.0
HERE = Path(__file__).parent


class Nursery:
    """The warm parent of all ranks of a test session."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
        )
        self.ended = {}
        self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, "the nursery died"
        return json.loads(line)

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def spawn(self, env, argv, out, bind=None):
        words = [str(a) for a in argv]
        return self.ask(do="spawn", env=env, argv=words, out=str(out), bind=bind)["pid"]

    def poll(self):
        for pid, status in self.ask(do="poll")["ended"].items():
            self.ended[int(pid)] = status
        return self.ended

    def close(self):
        # The end of its input is not enough: whatever was forked from this process holds it open.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write('{"do": "leave"}\n')
            self.process.stdin.close()
        self.process.wait(HANG_GUARD_S)
        self.process.stdout.close()


@dataclass
class Gang:
    """One job: its directory, its script, and the generations it goes through."""

    nursery: Nursery
    root: Path
    script: Path
    args: tuple = ()
    world: int = 3
    reference: int | None = None
    every: str = "10 steps"
    keep: dict = field(default_factory=lambda: {"last": 3})
    attempt: int = 1
    generation: int = -1
    extra: dict = field(default_factory=dict)
    pids: list = field(default_factory=list)

    def start(self):
        """The next generation: a fresh port, fresh report files."""
        self.generation += 1
        here = self.here()
        here.mkdir(parents=True)
        port = free_port()
        self.pids = [
            self.nursery.spawn(
                self.env(rank, port),
                [self.script, "--out", self.root / "out", *self.args],
                here / f"r{rank}.out",
                self.bind(rank),
            )
            for rank in range(self.world)
        ]
        return self

    def env(self, rank, port):
        here = self.here()
        secret = self.root / "secret"
        secret.write_text("of this job")
        return {
            "MASTER_ADDR": "127.0.0.1",
            "PHALANX_SECRET_FILE": str(secret),
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.world),
            "GROUP_RANK": "0",
            "NODE_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "PHALANX_JOB": "j-1",
            "PHALANX_ATTEMPT": str(self.attempt),
            "PHALANX_GENERATION": str(self.generation),
            "PHALANX_CHECKPOINT_DIR": str(self.store),
            "PHALANX_REPORT_FILE": str(here / f"r{rank}.report"),
            "PHALANX_CONTROL_FILE": str(here / "control"),
            "PHALANX_CHECKPOINT_EVERY": self.every,
            "PHALANX_CHECKPOINT_KEEP": json.dumps(self.keep),
            "PHALANX_CHECKPOINT_WAIT": "1s",
            "PHALANX_REFERENCE_WORLD": str(self.reference or self.world),
            "PHALANX_GRACE_S": "60",
            "TORCHELASTIC_ERROR_FILE": str(here / f"r{rank}.error.json"),
            **self.extra,
        }

    def bind(self, rank):
        """(folder, where) that only this rank sees there; None: ranks see the same files."""
        return None

    def here(self, generation=None):
        number = self.generation if generation is None else generation
        return self.root / f"a{self.attempt:03d}" / f"g{number:03d}"

    @property
    def store(self):
        return self.root / "checkpoints"

    def records(self, rank=0, generation=None, kind=None):
        path = self.here(generation) / f"r{rank}.report"
        data = path.read_bytes() if path.exists() else b""
        size = reports.committed_length(data[: reports.HEADER_BYTES]) if data else 0
        body = data[reports.HEADER_BYTES : reports.HEADER_BYTES + size]
        found = [record for _, record in reports.decode(body)]
        return [record for record in found if kind in (None, record["k"])]

    def output(self, generation=None):
        folder = self.here(generation)
        return "".join(p.read_text() for p in sorted(folder.glob("r*.out")))

    def wait_for(self, what, why):
        """Poll until `what()` is true or every rank has ended."""
        deadline = time.monotonic() + HANG_GUARD_S
        while not (value := what()):
            ended = self.nursery.poll()
            assert not all(pid in ended for pid in self.pids), f"{why}: ended\n{self.output()}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{why}: not in {HANG_GUARD_S} s\n{self.output()}")
            time.sleep(0.005)
        return value

    def wait_for_step(self, step, rank=0):
        def there():
            steps = self.records(rank, kind="step")
            return bool(steps) and steps[-1]["step"] >= step

        self.wait_for(there, f"step {step}")

    def wait(self):
        """Exit codes of all ranks; kills them when they hang."""
        deadline = time.monotonic() + HANG_GUARD_S
        while not all(pid in self.nursery.poll() for pid in self.pids):
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"hangs\n{self.output()}")
            time.sleep(0.01)
        return [self.nursery.ended[pid] for pid in self.pids]

    def finish(self):
        """Wait, and demand success."""
        codes = self.wait()
        assert codes == [0] * self.world, f"{codes}\n{self.output()}"
        return self

    def ledger(self, num_samples, until):
        """What the lineage of the final weights consumed, over all generations and ranks."""
        generations = []
        for number in range(self.generation + 1):
            rows = [
                Consumed(r["epoch"], r["lo"], r["hi"])
                for rank in range(self.world)
                for r in self.records(rank, number, "ledger")
            ]
            began = [(r["epoch"], r["position"]) for r in self.records(0, number, "data")]
            generations.append(
                GenerationLedger(self.attempt, number, began[0] if began else None, tuple(rows))
            )
        return audit(generations, num_samples=num_samples, until=until)

    @property
    def result(self):
        return json.loads((self.root / "out.json").read_text())

    def seen(self):
        """Global batches in order: (epoch, step, sorted samples) from every rank's own notes."""
        found = {}
        for path in self.root.glob("out.r*.seen"):
            for line in path.read_text().splitlines():
                epoch, step, rest = line.split(" ", 2)
                ids = json.loads(rest[: rest.index("]") + 1])
                found.setdefault((int(epoch), int(step)), set()).update(ids)
        return found

    def kill(self, *ranks):
        """SIGKILL to these ranks first, then to the others, as a supervisor does."""
        for pid in [self.pids[rank] for rank in ranks] + self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()

    def terminate(self, *ranks):
        for rank in ranks or range(self.world):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGTERM)


@contextlib.contextmanager
def killed_at_end(nursery):
    """A function that makes the folder of a gang and notes it; what still runs at the end is killed."""
    made = []

    def begun(job):
        job.root.mkdir()
        made.append(job)
        return job

    yield begun
    for job in made:
        if job.pids and not all(pid in nursery.poll() for pid in job.pids):
            job.kill()
