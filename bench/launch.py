"""How fast a launch and a recovery are, against torchrun in the same run.

    python bench/launch.py [--rounds N] [--quick] [--json FILE]

Everything runs `bench/steps.py` with 3 ranks. Each figure is the median of interleaved rounds:

* recovery: from SIGKILL of a random rank to the next completed optimizer step, warm and cold
  (bars: 1.0 s and 5 s; torchrun needs about 4 s where its restart does not hang);
* lost node: the same from SIGKILL of the supervisor of one of three nodes, which is replaced (bar: 5 s);
* cold start: from `phalanx run` with nothing running to the first optimizer step, over torchrun's
  (bar: 0.9);
* warm start: the same with `phalanx up` and a spare warm process (bar: 0.3).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from phalanx.schemas.home import ServerFile
from phalanx.sdk import PhalanxClient

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "steps.py"
BIN = Path(sys.executable).parent
GUARD_S = 120.0


class Trace:
    """The file in which rank 0 of `steps.py` writes the time of every completed step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def times(self) -> list[float]:
        """Wall-clock times of all steps so far."""
        if not self.path.exists():
            return []
        rows = self.path.read_text().splitlines()
        return [float(row.split()[0]) for row in rows if len(row.split()) == 2]

    def first_after(self, moment: float) -> float:
        """The first step completed after `moment`; waits for it."""
        deadline = time.time() + GUARD_S
        while time.time() < deadline:
            later = [t for t in self.times() if t > moment]
            if later:
                return min(later)
            time.sleep(0.005)
        raise SystemExit(f"no step within {GUARD_S:.0f} s: see {self.path.parent}")


def environment(trace: Trace, home: Path, steps: int) -> dict[str, str]:
    """The environment of one launch."""
    env = dict(os.environ, PHALANX_HOME=str(home), BENCH_TRACE=str(trace.path))
    env.update(BENCH_STEPS=str(steps), PYTHONUNBUFFERED="1")
    return env


@contextlib.contextmanager
def started(command: list, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """A process in its own session, ended with everything in it."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=log.parent,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def client(home: Path) -> PhalanxClient:
    """A client of the home's control plane."""
    server = ServerFile.model_validate_json((home / "server.json").read_text())
    return PhalanxClient(server.url, server.token)


def pids_of(home: Path, kind: str) -> list[int]:
    """Pids of the `ranks` or of the supervisors of the `nodes` of the home's newest job."""
    deadline = time.time() + GUARD_S
    with client(home) as api:
        newest = api.jobs(limit=1).jobs[0].num
        while time.time() < deadline:
            found = [one.pid for one in getattr(api.job(newest), kind)]
            if found and all(found):
                return [pid for pid in found if pid]
            time.sleep(0.05)
    raise SystemExit(f"the pids of the {kind} never became known")


def stop_server(home: Path) -> None:
    """End the control plane of a home that this run made."""
    with contextlib.suppress(OSError, ValueError):
        os.kill(ServerFile.model_validate_json((home / "server.json").read_text()).pid, 15)


def recovery(work: Path, flags: list[str], rounds: int, kind: str = "ranks") -> list[float]:
    """Seconds from SIGKILL of a random rank to the next completed step, `rounds` times in one job.

    With `kind` "nodes" the supervisor of a random node is killed.
    """
    home, trace = work / "home", Trace(work / "steps")
    env = environment(trace, home, steps=20_000)
    size = ["-n", "1", "--nodes", "3"] if kind == "nodes" else ["-n", "3"]
    command = [BIN / "phalanx", "run", *size, "--checkpoint-every", "1s", *flags, SCRIPT]
    seconds: list[float] = []
    rng = random.Random(7)
    with started(command, env, work / "log"):
        trace.first_after(0.0)
        for _ in range(rounds):
            # Let it make progress and commit a checkpoint, as a job has that is worth recovering.
            trace.first_after(time.time() + 2.5)
            victim = rng.choice(pids_of(home, kind))
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            # Surviving ranks cannot complete a step: the next one is the next generation's.
            seconds.append(trace.first_after(killed + 0.05) - killed)
    stop_server(home)
    return seconds


def first_step(command: list, env: dict[str, str], trace: Trace, log: Path) -> float:
    """Seconds from starting `command` to the first optimizer step."""
    begin = time.time()
    with started(command, env, log):
        return trace.first_after(begin) - begin


def torchrun_start(work: Path) -> float:
    """torchrun with the same script."""
    trace = Trace(work / "steps")
    env = environment(trace, work / "home", steps=30)
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", "3", SCRIPT]
    return first_step(command, env, trace, work / "log")


def run_start(work: Path, home: Path) -> float:
    """`phalanx run` with the same script."""
    trace = Trace(work / "steps")
    command = [BIN / "phalanx", "run", "-n", "3", SCRIPT]
    return first_step(command, environment(trace, home, steps=30), trace, work / "log")


def cold_start(work: Path) -> float:
    """`phalanx run` with nothing running."""
    took = run_start(work, work / "home")
    stop_server(work / "home")
    return took


def warm_start(work: Path) -> float:
    """`phalanx run` while `phalanx up` keeps a spare."""
    home = work / "home"
    env = environment(Trace(work / "none"), home, 1)
    with started([BIN / "phalanx", "up"], env, work / "up.log"):
        wait_for_spare()
        return run_start(work, home)


def wait_for_spare() -> None:
    """Wait until a warm process is there and has been idle for a second."""
    deadline, quiet = time.time() + GUARD_S, 0
    while time.time() < deadline and quiet < 10:
        states = []
        for proc in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if b"phalanx.train.warm_process.fork_server" in (proc / "cmdline").read_bytes():
                    states.append((proc / "stat").read_text().rsplit(")", 1)[1].split()[0])
        quiet = quiet + 1 if states and "R" not in states else 0
        time.sleep(0.1)


def starts(work: Path, rounds: int) -> dict[str, list[float]]:
    """Interleaved rounds of torchrun, a cold `phalanx run` and a warm one."""
    kinds = {"torchrun": torchrun_start, "cold": cold_start, "warm": warm_start}
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name, measure in kinds.items():
            folder = work / f"{name}{number}"
            folder.mkdir()
            figures[name].append(measure(folder))
        latest = ", ".join(f"{name} {values[-1]:.2f} s" for name, values in figures.items())
        print(f"  round {number + 1} of {rounds}: {latest}", flush=True)
    return figures


def report(results: dict[str, list[float]], rounds: int) -> None:
    """The table: every figure beside its bar."""
    middle = {name: statistics.median(values) for name, values in results.items()}
    rows = [
        ("SIGKILL of a rank to the next step, warm", middle["recovery warm"], "s", 1.0),
        ("SIGKILL of a rank to the next step, cold", middle["recovery cold"], "s", 5.0),
        ("SIGKILL of a node of three to the next step", middle["lost node"], "s", 5.0),
        ("phalanx run / torchrun, nothing running", middle["cold"] / middle["torchrun"], "x", 0.9),
        ("phalanx run / torchrun, phalanx up", middle["warm"] / middle["torchrun"], "x", 0.3),
    ]
    print(f"\n{'median of ' + str(rounds):44}{'measured':>10}{'bar':>8}")
    for name, value, unit, bar in rows:
        verdict = "ok" if value <= bar else "MISSED"
        print(f"{name:44}{value:8.2f} {unit}{bar:6.2f} {unit}  {verdict}")
    print("seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()))


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="2 rounds of each")
    parser.add_argument("--json", type=Path, help="write every single time there")
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    work = Path(tempfile.mkdtemp(prefix="phalanx-bench-"))
    results: dict[str, list[float]] = {}
    for name, flags in (("recovery warm", []), ("recovery cold", ["--no-warm"])):
        folder = work / name.replace(" ", "-")
        folder.mkdir()
        results[name] = recovery(folder, flags, rounds)
        print(f"  {name}: " + " ".join(f"{s:.2f}" for s in results[name]), flush=True)
    folder = work / "lost-node"
    folder.mkdir()
    results["lost node"] = recovery(folder, [], rounds, "nodes")
    print("  lost node: " + " ".join(f"{s:.2f}" for s in results["lost node"]), flush=True)
    results.update(starts(work, rounds))
    report(results, rounds)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
