"""Real control planes of one home, which tests kill, stop and count the work of.

Several on one PostgreSQL database, or one on the SQLite file of the home.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from phalanx.core.cost.ledger import Account
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.sdk import PhalanxClient
from support.waiting import wait_until

RUN = """
from phalanx.standalone.__main__ import main
sys.exit(main())
"""
# A control plane without the guard: no write of a loop is checked, and a lost lease is not noticed.
UNGUARDED = (
    """
import sys
from phalanx.server.leadership import Leadership
from phalanx.store.leadership import leases
leases.check = lambda tx, lease: None
leases.renew = lambda tx, lease, ttl_s: None
Leadership.expect = lambda self, lease: None
"""
    + RUN
)
# A later release: its migration adds a column that this one does not know.
NEXT_RELEASE = (
    """
import sys
from sqlalchemy import text
import phalanx
from phalanx.store import migrate
phalanx.__version__, migrate.HEAD = "next", "9998"
def upgrade(engine, stored):
    with engine.begin() as conn:
        conn.execute(text("ALTER TABLE jobs ADD COLUMN next_release integer DEFAULT 1"))
        conn.execute(text("UPDATE alembic_version SET version_num = '9998'"))
        migrate._note_oldest(conn)
migrate.upgrade = upgrade
"""
    + RUN
)
# The process behind each placement, and behind each command that is taken or done.
AUDIT = """
CREATE TABLE audit (id bigserial, application text, what text, at timestamptz);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit (application, what, at)
  VALUES (current_setting('application_name'), TG_TABLE_NAME, clock_timestamp());
  RETURN NEW;
END $$;
CREATE TRIGGER audited AFTER INSERT ON events FOR EACH ROW WHEN (NEW.kind = 'attempt_placed')
  EXECUTE FUNCTION audited();
CREATE TRIGGER audited AFTER UPDATE ON commands FOR EACH ROW EXECUTE FUNCTION audited();
"""


@dataclass(slots=True)
class RunningReplica:
    """One control plane process and its URL."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    stopped: bool = False
    """Whether a load balancer would send it no requests."""
    port: int = 0
    """The port that it was given; 0: it chose one."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def role(self) -> str:
        """`leader`, `standby`, or empty where nothing answers."""
        try:
            return str(httpx.get(f"{self.url}/healthz", timeout=5.0).json()["role"])
        except httpx.HTTPError:
            return ""

    def has_answered(self) -> bool:
        """Whether it has told its URL; fails with its output when it has ended."""
        text = self.log.read_text()
        assert self.process.poll() is None, text
        if not self.url and " at http" in text:
            told = text.split(" at ")[1].split()[0]
            self.url = f"http://127.0.0.1:{self.port}" if self.port else told
        return bool(self.url)


class Replicas:
    """The control planes of one home and database. Each job appends a line to a file when it starts."""

    def __init__(
        self, root: Path, url: str | None, slots: int = 4, advertise: str | None = None
    ) -> None:
        """`url` of a PostgreSQL database, or None for SQLite; `advertise`: the URL of a load balancer."""
        self.root, self.database, self.slots, self.advertise = root, url, slots, advertise
        self.home = root / "home"
        self.env = dict(os.environ)
        if url is not None:
            self.env["PHALANX__DATABASE__URL"] = url
        (root / "starts").mkdir()
        self.running: list[RunningReplica] = []
        self._started = self._submitted = 0

    def start(self, instead: str | None = None, port: int = 0) -> RunningReplica:
        """Start one more control plane, or a program in its place; `wait` waits for it."""
        self._started += 1
        log = self.root / f"replica-{self._started}.log"
        program = ["-m", "phalanx.standalone"] if instead is None else ["-c", instead]
        words = [sys.executable, *program, "--home", str(self.home), "--slots", str(self.slots)]
        words += ["--port", str(port)] + (["--advertise", self.advertise] if self.advertise else [])
        with log.open("wb") as out:
            process = subprocess.Popen(
                words,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.running.append(RunningReplica(process, log, port=port))
        return self.running[-1]

    def wait(self) -> None:
        """Wait until all answer and one leads."""
        wait_until(lambda: all(one.has_answered() for one in self.running), "the replicas")
        self.leader()

    def audit(self) -> None:
        """Note from now on which process writes what the loops write; on PostgreSQL only."""
        assert self.database is not None
        with psycopg.connect(self.database) as conn:
            conn.execute(AUDIT)

    def ask(self, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Read from the database."""
        if self.database is None:
            uri = f"file:{HomeLayout(self.home).database_file}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=60)) as file:
                return file.execute(query, values).fetchall()
        with psycopg.connect(self.database) as conn:
            return conn.execute(query, values).fetchall()

    def loop_writes(self, one: RunningReplica) -> int:
        """How often a process has written what the loops write."""
        query = "SELECT count(*) FROM audit WHERE application = %s"
        return int(self.ask(query, [f"phalanx {one.pid}"])[0][0])

    def leader(self, *others: RunningReplica) -> RunningReplica:
        """Wait until one leads that is none of `others`."""
        found: list[RunningReplica] = []

        def leads() -> bool:
            found[:] = [one for one in self.running if one not in others and one.role() == "leader"]
            return bool(found)

        wait_until(leads, "a leader", every_s=0.1)
        return found[0]

    def standby(self) -> RunningReplica:
        """One that does not lead."""
        leader = self.leader()
        return next(one for one in self.running if one is not leader)

    def client(self, one: RunningReplica) -> PhalanxClient:
        return PhalanxClient(one.url, (self.home / "token").read_text().strip())

    def new_job(self) -> int:
        """The number of the next job."""
        self._submitted += 1
        return self._submitted

    def submit(self, client: PhalanxClient, sleep_s: float, number: int | None = None) -> int:
        """Submit a job of one rank that notes its start; a repetition changes nothing."""
        number = number or self.new_job()
        return client.submit(self.request(number, sleep_s), key=f"noted-{number}").job.num

    def request(self, number: int, sleep_s: float) -> SubmitRequest:
        """The submission of the job with this number, which runs for `sleep_s`."""
        note = self.root / "starts" / str(number)
        script = f"echo started >> {note}; sleep {sleep_s}"
        spec = {
            "schema": 1,
            "name": "noted",
            "run": ["sh", "-c", script],
            "framework": "none",
            "resources": {"nodes": 1, "slots_per_node": 1},
        }
        return SubmitRequest(spec=spec)

    def starts(self) -> dict[str, int]:
        """How often each submitted job has started."""
        names = [str(num + 1) for num in range(self._submitted)]
        return {name: self._lines(self.root / "starts" / name) for name in names}

    @staticmethod
    def _lines(path: Path) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len(path.read_text().splitlines())
        return 0

    def are_over(self) -> bool:
        """Whether every job has ended well."""
        found = dict(self.ask("SELECT state, count(*) FROM jobs GROUP BY state"))
        assert not found.keys() & {"failed", "cancelled"}, found
        return set(found) == {"succeeded"} and found["succeeded"] == self._submitted

    def unbalanced(self) -> list[tuple[Any, ...]]:
        """Jobs whose ledger is not the time that they held slots: number, ledger, slot-seconds."""
        accounts = [one.value for one in Account if one is not Account.QUEUED]
        query = (
            "SELECT j.num, c.held, j.attained_slot_s FROM jobs j LEFT JOIN (SELECT job, "
            f"sum({' + '.join(accounts)}) AS held FROM cost_rows WHERE generation IS NOT NULL GROUP BY job"
            ") c ON c.job = j.num WHERE abs(coalesce(c.held, 0) / 1e6 - j.attained_slot_s) > 1e-5"
        )
        return self.ask(query)

    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        live = "SELECT count(*) FROM jobs WHERE ended_at IS NULL"
        return self.ask(live)[0][0] == 0

    def kill(self, one: RunningReplica) -> None:
        """`kill -9`."""
        one.process.kill()
        one.process.wait()
        self.running.remove(one)

    def leave(self, one: RunningReplica) -> None:
        """SIGTERM, as at a planned stop."""
        one.process.terminate()
        assert one.process.wait(60) == 0, one.log.read_text()
        self.running.remove(one)

    def close(self) -> None:
        """End all processes of the home."""
        for one in self.running:
            one.process.send_signal(signal.SIGCONT)
            one.process.kill()
            one.process.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "phalanx.supervise" in words and any(str(self.home) in word for word in words):
                    process.kill()
