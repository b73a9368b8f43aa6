"""`make demo`: trains on real data with three ranks, kills one half-way, and shows that nothing is lost.

Everything it does, a user can do: it submits `job.yaml`, watches it through the client library, sends
SIGKILL to one rank, waits, and reads the outcome. Exits 0 only when the outcome is right.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from phalanx.checkpoint import list_checkpoints, verify
from phalanx.cli.client.embedded import find
from phalanx.cli.client.invocation import Invocation
from phalanx.cli.client.session import Session
from phalanx.cli.terminal.screen import StepEstimate
from phalanx.errors import PlatformError, TrainingError
from phalanx.kit.units import format_duration, format_size
from phalanx.sdk import PhalanxClient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = ROOT / ".phalanx-home"
LIMIT_S = 180.0
GOAL = 0.97
POLL_S = 0.1


def phalanx(*words: str) -> str:
    """Run a verb as a user would; its output."""
    command = [sys.executable, "-m", "phalanx.cli", "--home", str(HOME), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


class Bar:
    """A progress bar on a terminal; a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = Console(highlight=False)
        self._bar = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self._task = self._bar.add_task("queued", total=None, facts="")
        self._pace = StepEstimate()
        self._last_epoch = -1
        if self.console.is_terminal:
            self._bar.start()

    def show(self, job) -> None:
        done = job.progress
        total = self._pace.total(done.step, done.epoch, done.num_epochs)
        words = []
        if done.step is not None:
            words.append(f"epoch {(done.epoch or 0) + 1}/{done.num_epochs or '?'}")
            words.append(f"step {done.step}")
        words += [f"{name} {value:.3f}" for name, value in sorted(done.last_metrics.items())]
        facts = "  ".join(words)
        self._bar.update(
            self._task, description=job.state, total=total, completed=done.step or 0, facts=facts
        )
        epoch = done.epoch or 0
        if not self.console.is_terminal and done.step is not None and epoch >= self._last_epoch + 5:
            self._last_epoch = epoch
            self.console.print(f"  {job.state:<10} {facts}", markup=False)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


def with_epochs(client, num: int, job):
    """The job with its number of epochs, read from what rank 0 prints where nothing else tells it."""
    done = job.progress
    if done.num_epochs or done.epoch is None:
        return job
    for line in client.logs(num, ranks=[0], stream="out", tail=1).lines:
        said = re.match(r"epoch \d+/(\d+)", line.text)
        if said is not None:
            done = done.model_copy(update={"num_epochs": int(said[1])})
    return job.model_copy(update={"progress": done})


def half_way(job) -> bool:
    """Whether about half of the epochs are done, and there is a checkpoint to go back to."""
    done = job.progress
    if job.state != "running" or done.epoch is None or not done.num_epochs or job.restarts:
        return False
    return 2 * done.epoch >= done.num_epochs and done.checkpoint_step is not None


def kill_one_rank(job, bar: Bar) -> bool:
    """SIGKILL to a random rank; False when its process is not known or gone."""
    known = [rank for rank in job.ranks if rank.pid]
    if not known:
        return False
    victim = random.choice(known)
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    bar.say(
        f"  half-way: SIGKILL to rank {victim.rank} (pid {victim.pid}) at step "
        f"{job.progress.step}, on purpose",
        "bold magenta",
    )
    return True


def watch(client, num: int, bar: Bar):
    """Follow the job to its end, and do the damage on the way; (the job, whether it was done)."""
    killed, state = False, ""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        job = with_epochs(client, num, client.job(num))
        if job.state != state:
            state = job.state
            if state in ("recovering", "running") and killed:
                bar.say(f"  {state}: {job.reason.message}")
        bar.show(job)
        if job.is_terminal:
            return job, killed
        if not killed and half_way(job):
            killed = kill_one_rank(job, bar)
        time.sleep(POLL_S)
    raise SystemExit(f"the job is not over after {LIMIT_S:.0f} s: phalanx --home {HOME} show {num}")


def accuracy_of(client, num: int):
    """The last accuracy on held-out digits that the script logged."""
    found = client.metrics(num, names=["val_acc"], ranks=[0])
    values = [value for one in found.series for value in one.values if value is not None]
    return values[-1] if values else None


def verified(store: Path):
    """How many checkpoints there are, how many of them have every byte right, and their size."""
    stored = list_checkpoints(store)
    good = size = 0
    for one in stored:
        try:
            size += sum(entry.size_bytes for entry in verify(one.path).files)
            good += 1
        except TrainingError:
            continue
    return good, len(stored), size


def summary(client, num: int, job, killed: bool, bar: Bar) -> bool:
    """Print the outcome; whether it is what it has to be."""
    lineage = job.lineage
    accuracy = accuracy_of(client, num)
    good, stored, size = verified(Path(job.checkpoint_dir))
    lost = [one.lost_s for one in lineage.restarts if one.lost_s is not None]
    rows = [
        ("state", job.state, job.state == "succeeded"),
        (
            "accuracy on held-out digits",
            "-" if accuracy is None else f"{accuracy:.4f}  (at least {GOAL})",
            accuracy is not None and accuracy >= GOAL,
        ),
        ("ranks killed on purpose", str(int(killed)), killed),
        ("generations", str(lineage.generations), lineage.generations == 2),
        (
            "from the kill to the next step",
            ", ".join(format_duration(one) for one in lost) or "-",
            len(lost) == 1,
        ),
        ("samples missed", str(lineage.missed), lineage.missed == 0),
        ("samples duplicated", str(lineage.duplicated), lineage.duplicated == 0),
        ("samples redone", str(lineage.redone), lineage.redone is not None),
        ("every resume exact", "yes" if lineage.exact else "no", lineage.exact is True),
        (
            "checkpoints verified",
            f"{good} of {stored}  ({format_size(size)})",
            0 < good == stored,
        ),
    ]
    bar.say("")
    for name, value, right in rows:
        bar.say(f"  {'ok ' if right else 'BAD'}  {name:<31} {value}", "" if right else "bold red")
    return all(right for _, _, right in rows)


def pointers(job, bar: Bar) -> None:
    """Where to look further."""
    program = os.path.relpath(Path(sys.executable).with_name("phalanx"))
    home = os.path.relpath(HOME)
    bar.say("\nLook further:")
    for verb in ("show", "logs", "metrics", "checkpoints"):
        bar.say(f"  {program} --home {home} {verb} {job.label}")
    found = find(HOME)
    if found is not None:
        with PhalanxClient(found.url, found.token) as client:
            bar.say(f"  {client.login_link()}")
        bar.say(f"  (for about a minute; longer with: {program} --home {home} up)")


def main() -> int:
    begun = time.monotonic()
    session = Session(Invocation.of_this_process(), HOME)
    print("Phalanx demo: 1,797 handwritten digits, a small residual network, 3 ranks.", flush=True)
    label = phalanx("submit", str(HERE / "job.yaml"))
    print(f"  {label} submitted: phalanx submit examples/digits/job.yaml", flush=True)
    with session.client() as client:
        num = int(label.removeprefix("j-"))
        bar = Bar()
        try:
            job, killed = watch(client, num, bar)
            bar.close()
            right = summary(client, num, job, killed, bar)
            if job.failure is not None and job.state != "succeeded":
                bar.say(job.failure.traceback or job.failure.message)
            pointers(job, bar)
        except KeyboardInterrupt:
            client.stop(num, goal="cancel")
            return 130
        finally:
            bar.close()
    bar.say(
        f"\n{'All is well' if right else 'Something is wrong'}: {time.monotonic() - begun:.0f} s."
    )
    return 0 if right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlatformError as error:
        sys.exit(f"demo: {error}")
