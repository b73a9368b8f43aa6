"""Jobs that begin from a checkpoint of another job, with and without the library, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.platform.harness import Platform
from phalanx import checkpoint
from phalanx.kit.text import parse_job_label
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]

# Counts on from what the folder `out` holds; waits with a new count until the test lets it end.
FOLDER = """
import os, sys, time
done = int(open("out/state.bin").read()) if os.path.isdir("out") else 0
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("begins with", done, "path", os.environ.get("PHALANX_RESUME_FROM", "none"), flush=True)
os.makedirs("out", exist_ok=True)
open("out/state.bin.tmp", "w").write(str(done + 10))
os.replace("out/state.bin.tmp", "out/state.bin")
print(f"step {done + 10} loss {1 / (done + 10)}", flush=True)
while not os.path.exists(f"{sys.argv[1]}-{restarts}"):
    time.sleep(0.01)
"""
PLAIN = """
import os, sys, time
path = os.environ["PHALANX_RESUME_FROM"]
print("found", open(os.path.join(path, "state.bin")).read(), flush=True)
while not os.path.exists(sys.argv[1] + "-" + os.environ["TORCHELASTIC_RESTART_COUNT"]):
    time.sleep(0.01)
"""
LIBRARY = """
import sys, torch, phalanx.train as pt
run = pt.init()
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(16, 2), torch.ones(16, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, opt, loader = run.prepare(model, opt, loader)
for epoch in run.epochs(int(sys.argv[1])):
    for x, y in loader:
        print("step of epoch", epoch, flush=True)
        loss = ((model(x) - y) ** 2).mean()
        loss.backward(); opt.step(); opt.zero_grad()
"""


def spec(folder: Path, script: str, *args: object, **more: object) -> dict:
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(script)
    return {
        "name": folder.name,
        "workdir": str(folder),
        "run": [sys.executable, "job.py", *map(str, args)],
        "resources": {"slots_per_node": 1},
        **more,
    }


def output(platform: Platform, job: str, word: str) -> list[str]:
    lines = platform.run("logs", job).stdout.splitlines()
    return [one[one.index(word) :] for one in lines if word in one]


def kill_rank(platform: Platform, job: str) -> None:
    """SIGKILL the rank of the job's running generation."""
    (rank,) = wait_until(lambda: platform.show(job).ranks, "a rank")
    os.kill(rank.pid, signal.SIGKILL)


def num(job: str) -> int:
    found = parse_job_label(job)
    assert found is not None
    return found


def committed(platform: Platform, job: str, count: int) -> None:
    with platform.client() as client:
        wait_until(lambda: len(client.checkpoints(num(job))) >= count, "a commit of the folder")


def test_a_folder_goes_on_in_another_job_and_after_a_kill(
    platform: Platform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    keeps = {"metrics": "step {step} loss {loss}", "checkpoint": {"directory": "out"}}
    first = platform.submit(spec(tmp_path / "first", FOLDER, go, **keeps))
    committed(platform, first, 1)
    Path(f"{go}-0").touch()
    platform.wait_state(first, "succeeded")
    Path(f"{go}-0").unlink()
    keeps["checkpoint"] = {"directory": "out", "resume_from": first}
    second = platform.submit(spec(tmp_path / "second", FOLDER, go, **keeps))
    committed(platform, second, 1)
    kill_rank(platform, second)
    committed(platform, second, 2)
    Path(f"{go}-1").touch()
    platform.wait_state(second, "succeeded")
    # The first life has the checkpoint of the other job, the second one that of its own.
    begun = output(platform, second, "begins with")
    assert [one.split()[2] for one in begun] == ["10", "20"]
    assert begun[0].split()[-1] != "none" and begun[1].split()[-1] == "none"
    with platform.client() as client:
        view = client.provenance(num(second))
        rows = client.checkpoints(num(second))
    assert view.begins_from is not None and view.begins_from.job == num(first)
    assert [(one.step, one.job) for one in view.resumes] == [(10, num(first)), (20, None)]
    manifests = [checkpoint.verify(Path(one.path)) for one in rows]
    assert {one.provenance for one in manifests} == {view.digest}
    assert manifests[0].parent == Path(view.begins_from.path).name
    # The weights lead back to all of it, with the server and without.
    shown = json.loads(
        platform.run("checkpoints", "show", rows[-1].path, "--provenance", "--json").stdout
    )
    assert (shown["job"], shown["digest"], shown["server"]["digest"]) == (
        second,
        view.digest,
        view.digest,
    )


def test_a_script_without_a_folder_finds_the_path_in_every_life(
    platform: Platform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    keeps = {"metrics": "step {step} loss {loss}", "checkpoint": {"directory": "out"}}
    first = platform.submit(spec(tmp_path / "plainly", FOLDER, go, **keeps))
    committed(platform, first, 1)
    Path(f"{go}-0").touch()
    platform.wait_state(first, "succeeded")
    Path(f"{go}-0").unlink()
    reads = spec(tmp_path / "reads", PLAIN, go, checkpoint={"resume_from": f"{first}@10"})
    second = platform.submit(reads)
    wait_until(lambda: output(platform, second, "found 10"), "the first life")
    kill_rank(platform, second)
    Path(f"{go}-1").touch()
    platform.wait_state(second, "succeeded")
    assert output(platform, second, "found") == ["found 10", "found 10"]
    path = Path(platform.client().checkpoints(num(first))[0].path)
    (path / "state.bin").write_text("11")
    damaged = platform.submit(reads)
    view = platform.wait_state(damaged, "failed")
    assert view.failure.cause == "user_error" and "resume_from: " in view.failure.message


def test_the_library_restores_the_checkpoint_of_another_job(
    platform: Platform, tmp_path: Path
) -> None:
    first = platform.submit(spec(tmp_path / "lib", LIBRARY, 2))
    platform.wait_state(first, "succeeded")
    flags = ("--resume-from", first, "-n", "1", "--detach")
    made = platform.run("run", *flags, tmp_path / "lib" / "job.py", "4")
    second = made.stdout.split()[-1]
    platform.wait_state(second, "succeeded")
    steps = [f"step of epoch {epoch}" for epoch in (2, 3) for _ in range(4)]
    assert output(platform, second, "step of") == steps
    refused = platform.run(
        "run", "--resume-from", f"{first}@77", tmp_path / "lib" / "job.py", check=False
    )
    assert refused.returncode != 0 and "has no valid checkpoint '77'" in refused.stderr
