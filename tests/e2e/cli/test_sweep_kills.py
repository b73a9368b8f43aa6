"""Studies of every method while the processes that run them are killed at random: `pytest -m proof`.

KILLS sets the number of SIGKILLs for each method (25), METHODS the methods, SEED the seed, GUARD_S how
long a study may take, and RECORD a file that gets one line for each method. Each study is compared with
the same one undisturbed. Trials use no torch: they commit folders, report, and pause at their targets by
the records that `run.report` writes; a fork of a population begins as `phalanx.train.init` has it begin.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from e2e.cli.test_embedded import Home
from phalanx.core.search.machine import rebuild
from phalanx.store import open_store
from phalanx.store.studies import log, rows
from support.waiting import wait_until

pytestmark = pytest.mark.proof
KILLS, SEED = int(os.environ.get("KILLS", "25")), int(os.environ.get("SEED", "0"))
ALL = (
    "random",
    "grid",
    "qmc",
    "tpe",
    "bayesian",
    "asha",
    "asha-stopping",
    "hyperband",
    "pbt",
    "pb2",
)
METHODS = tuple(os.environ.get("METHODS", ",".join(ALL)).split(","))
GUARD_S = float(os.environ.get("GUARD_S", "1200"))
RECORD = os.environ.get("RECORD")
TRIALS, MEMBERS = 12, 4
POPULATIONS = ("pbt", "pb2")
# Of these the whole course is compared: which trials there are, and how each ended.
ONE_COURSE = ("random", "grid", "qmc", "tpe", "bayesian", *POPULATIONS)
GIT = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"],
    cwd=Path(__file__).parent,
    capture_output=True,
    text=True,
).stdout.strip()
SCRIPT = """
import time
from pathlib import Path

from phalanx import checkpoint
from phalanx.core.contract.records import ReportRecord, RestoredRecord, StepRecord, StoppedRecord
from phalanx.train.gang import context
from phalanx.train.gang.report import report_to
from phalanx.train.state import folders, warm_start

info = context.read()
report = report_to(info.report_file, lambda: time.time_ns() // 1000)
state = Path("state")
state.mkdir(exist_ok=True)
x, y = info.trial.params["x"], info.trial.params["y"]
unit, total, path = 0, 0.0, ""


def paused():
    value = total / unit + 1 / unit
    final = unit < 3 and info.trial.until is not None and unit >= info.trial.until
    metrics = {"val_loss": value}
    report.write(ReportRecord(unit=unit, value=value, metrics=metrics, checkpoint=path, final=final))
    if final:
        report.write(StoppedRecord(saved=True, step=unit, target=unit))
    return final


if info.trial.fork_of is not None:
    warm_start.adopt(info.trial.fork_of.path, info, checkpoint.Disk())
found = folders.newest()
if found is not None:
    unit, total, path = found[1], float((found[0] / "total").read_text()), str(found[0])
    report.write(RestoredRecord(path=path, name=found[0].name, step=unit, position=unit))
# A rank that was killed between its checkpoint and its report tells it now; a repeated one changes nothing.
leaves = found is not None and paused()
while not leaves and unit < 3:
    time.sleep(0.15)
    unit, total = unit + 1, total + (x - 2) ** 2 + y
    (state / "total").write_text(repr(total))
    report.write(StepRecord(step=unit))
    path = str(folders.save(state, step=unit))
    leaves = paused()
report.close()
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in ("calm", "killed"):
        for process in Home(tmp_path / name).servers():
            process.terminate()
        psutil.wait_procs(Home(tmp_path / name).servers(), timeout=60)


def study_of(method: str) -> dict[str, Any]:
    """A study of 12 trials; those with models one at a time, so that what is known is the same."""
    rungs = {"rule": "asha", "type": "promotion", "min": 1, "max": 3, "eta": 3, "hold": "never"}
    chosen = {
        "asha": rungs,
        "asha-stopping": {"rule": "asha", "type": "stop", "min": 1, "max": 3, "eta": 3},
        "hyperband": rungs | {"rule": "hyperband"},
    }
    search = {"method": "random" if method in chosen else method, "seed": 5}
    if method in ("tpe", "bayesian"):
        search["init_points"] = 4
    x = {"values": [0, 1, 2, 3]} if method == "grid" else {"float": [0.0, 4.0]}
    y = {"values": [0, 1, 2]} if method == "grid" else {"float": [0.0, 1.0]}
    alone = method in ("tpe", "bayesian", *POPULATIONS)
    population = {"size": MEMBERS, "every": 1, "max": 3, "quantile": 0.5}
    limits = {"rank_crash": "unlimited", "start_failed": "unlimited", "user_error": "unlimited"}
    return {
        "schema": 1, "kind": "study", "name": method,
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "search": search, "space": {"x": x, "y": y},
        "trials": {"parallel": 1 if alone else 2} | ({} if method in POPULATIONS else {"max": TRIALS}),
        **({"rungs": chosen[method]} if method in chosen else {}),
        **({"population": population} if method in POPULATIONS else {}),
        "job": {"run": [sys.executable, "trial.py"], "framework": "none",
                "recovery": {**limits, "node_lost": "unlimited", "max_restarts_without_progress": 100},
                "resources": {"nodes": 1, "slots_per_node": 1}},
    }  # fmt: skip


class Disturbed:
    """One study in a home of its own, read from its database so that looking costs no process."""

    def __init__(self, root: Path, method: str) -> None:
        root.mkdir()
        self.home = Home(root)
        (root / "trial.py").write_text(SCRIPT)
        (root / "study.yaml").write_text(yaml.safe_dump(study_of(method)))
        code, _, err = self.home.run("sweep", "study.yaml", "-d")
        assert code == 0, err

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        file = self.home.path / "db" / "phalanx.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as found:
            return found.execute(query).fetchall()

    def is_over(self) -> bool:
        self.keep_up()
        return bool(self.ask("select 1 from studies where ended_at is not null"))

    def keep_up(self) -> None:
        """A control plane that was killed is started by the next verb of its user."""
        try:
            psutil.Process(self.home.server_pid())
        except (psutil.Error, OSError, ValueError):
            self.home.run("sweep", "ls")

    def victims(self) -> dict[str, list[psutil.Process]]:
        """Processes of this home by what they are."""
        kinds: dict[str, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                own = str(self.home.path)
                if "phalanx.standalone" in words and own in words:
                    kinds.setdefault("control plane", []).append(process)
                    for child in process.children():
                        if "phalanx.search" in child.cmdline():
                            kinds.setdefault("sampler", []).append(child)
                elif "phalanx.supervise" in words and any(own in word for word in words):
                    kinds.setdefault("supervisor", []).append(process)
                    below = process.children(recursive=True)
                    ranks = [one for one in below if "trial.py" in " ".join(one.cmdline())]
                    kinds.setdefault("rank", []).extend(ranks)
        return kinds

    def trials(self) -> list[tuple[Any, ...]]:
        found = self.ask("select trial, params, status, job, value from trials order by trial")
        return [(n, json.loads(params), *rest) for n, params, *rest in found]


@pytest.mark.parametrize("method", METHODS)
def test_kills_lose_and_double_no_trial(root: Path, method: str, capsys: Any) -> None:
    dice = random.Random(f"{SEED}/{method}")
    calm = Disturbed(root / "calm", method)
    wait_until(calm.is_over, "the undisturbed study", guard_s=GUARD_S, every_s=0.5)
    killed = Disturbed(root / "killed", method)
    kills: Counter[str] = Counter()
    deadline = time.monotonic() + GUARD_S
    while not killed.is_over():
        assert time.monotonic() < deadline, (kills, killed.trials())
        kinds = killed.victims()
        if kills.total() < KILLS and any(kinds.values()):
            # Kinds are drawn first: there are more ranks and supervisors than control planes.
            kind = dice.choice(sorted(kind for kind, found in kinds.items() if found))
            victim = dice.choice(kinds[kind])
            with contextlib.suppress(psutil.Error):
                victim.send_signal(signal.SIGKILL)
                kills[kind] += 1
        time.sleep(dice.uniform(0.1, 1.5))
    checked(killed, calm, method)
    statuses = Counter(one[2] for one in killed.trials())
    attempts = killed.ask("select count(*), sum(attempts) from jobs")
    line = (
        f"| {method} | {SEED} | {kills.total()} | {dict(kills)} | {dict(statuses)} | {attempts} |"
    )
    with capsys.disabled():
        print(f"\n{line}")
    if RECORD:
        with open(RECORD, "a") as record:
            record.write(f"{line} {GIT} |\n")


def checked(killed: Disturbed, calm: Disturbed, method: str) -> None:
    """What must hold at the end of a study whatever was killed."""
    (state,) = killed.ask("select state, reason_code from studies")
    assert state == calm.ask("select state, reason_code from studies")[0]
    found, expected = killed.trials(), calm.trials()
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert len(found) >= MEMBERS + 2 if method in POPULATIONS else len(found) == TRIALS
    jobs = [one[3] for one in found]
    assert None not in jobs
    assert sorted(jobs) == [num for (num,) in killed.ask("select num from jobs order by num")]
    assert not killed.ask("select * from study_commands")
    twice = "select job, unit from trial_reports group by job, unit having count(*) > 1"
    assert not killed.ask(twice)
    values = {(one[0], unit): value for one, unit, value in _values(killed)}
    for one, unit, value in _values(calm):
        assert values.get((one[0], unit), value) == value
    if method in ONE_COURSE:
        assert [one[2] for one in found] == [one[2] for one in expected]
        assert [one[4] for one in found] == [one[4] for one in expected]
    if method in ONE_COURSE and method not in POPULATIONS:
        assert {one[2] for one in found} == {"completed"}
    # What the study has settled is what its jobs held.
    held = "select trial, sum(attained_slot_s) from jobs group by trial order by trial"
    settled = killed.ask("select trial, slot_s from trials order by trial")
    assert settled == [(one, pytest.approx(slot_s)) for one, slot_s in killed.ask(held)]
    store = open_store(killed.home.path / "db" / "phalanx.sqlite")
    try:
        fresh = store.view(
            lambda tx: rebuild(log.study_log(tx, 1, up_to=rows.load(tx, 1).last_seq))
        )
    finally:
        store.close()
    assert [one.status.value for one in fresh.trials] == [one[2] for one in found]


def _values(one: Disturbed) -> list[tuple[Any, int, float]]:
    """Each report: the trial, its unit and its value."""
    by_job = {trial[3]: trial for trial in one.trials()}
    found = one.ask("select job, unit, value from trial_reports order by job, unit")
    return [(by_job[job], unit, float(value)) for job, unit, value in found]
