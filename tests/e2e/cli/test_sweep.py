"""`phalanx sweep` with a control plane of its own: real trials, its verbs, kills of the control plane."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from e2e.cli.test_embedded import Home
from e2e.platform.harness import GUARD_S, Platform, kill
from phalanx.launch.ports import free_port
from support.s3 import KEY, SECRET, needs_s3, s3_server
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
SCRIPT = """
import phalanx.train as pt

run = pt.init()
if run.params["x"] == 9:
    run.reject("nine is too much")
for epoch in range(2):
    run.report(epoch=epoch, val_loss=(run.params["x"] - 2) ** 2 + run.params["y"] + 1 - epoch)
"""
DIGITS = Path(__file__).parents[3] / "examples" / "sweep"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    one = Home(tmp_path)
    (tmp_path / "trial.py").write_text(SCRIPT)
    yield one
    for process in one.servers():
        process.terminate()
    psutil.wait_procs(one.servers(), timeout=60)


def study_file(home: Home, xs: list[int], ys: list[int], parallel: int = 2) -> str:
    text = {
        "schema": 1, "kind": "study", "name": "bowl",
        "objective": {"metric": "val_loss", "goal": "minimize"}, "search": {"method": "grid"},
        "space": {"x": {"values": xs}, "y": {"values": ys}},
        "trials": {"parallel": parallel},
        "job": {"run": [sys.executable, "trial.py"], "framework": "none",
                "resources": {"nodes": 1, "slots_per_node": 1}},
    }  # fmt: skip
    (home.root / "study.yaml").write_text(yaml.safe_dump(text))
    return "study.yaml"


def trials_of(home: Home) -> list[dict[str, object]]:
    code, out, err = home.run("sweep", "trials", "s-1", "--json")
    assert code == 0, err
    found = json.loads(out)
    return list(found["trials"] if isinstance(found, dict) else found)


def test_a_sweep_is_followed_to_its_end_and_shown_by_its_verbs(home: Home):
    git = ["git", "-C", str(home.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    code, out, err = home.run("sweep", study_file(home, [2, 9], [0]))
    assert code == 0, (out, err)
    # A rejected trial is not counted, so one more was asked for, and the grid has no more params.
    found = [one for one in trials_of(home) if one["params"]]
    done, rejected = sorted(found, key=lambda one: one["params"]["x"])
    assert (rejected["status"], rejected["value"]) == ("rejected", None)
    assert "nine is too much" in str(rejected["reason"])
    assert (done["params"]["x"], done["value"], done["status"]) == (2, 0.0, "completed")
    best = json.loads(home.run("sweep", "best", "s-1", "--json")[1])
    assert best["params"] == {"x": 2, "y": 0}
    jobs = json.loads(home.run("ps", "--all", "--json")[1])
    assert len(jobs) == 2 and all(one["labels"].get("git-commit") for one in jobs)
    ran = next(one for one in jobs if one["state"] == "succeeded")
    made = json.loads(home.run("show", ran["label"], "--provenance", "--json")[1])
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert (made["source"]["commit"], made["seed"]) == (head, 0)
    assert [(one["attempt"], one["generation"]) for one in made["seeds"]] == [(1, 0)]


PRINTING = """
import json, os, signal

x = json.loads(os.environ["PHALANX_PARAMS"])["x"]
for epoch in range(2) if x else ():
    print(f"epoch {epoch}: val_loss {x * 0.5 - epoch * 0.1:.3f}", flush=True)
    if x == 1:
        signal.pause()
"""


@pytest.mark.extras
def test_a_script_without_the_library_is_searched_by_what_it_prints(home: Home):
    name = study_file(home, [0, 2, 1], [0], parallel=1)
    (home.root / "trial.py").write_text(PRINTING)
    text = yaml.safe_load((home.root / name).read_text())
    text["objective"] |= {"target": 0.5}
    text["search"], text["trials"]["max"] = {"method": "random"}, 3
    text["start_with"] = [{"x": 0, "y": 0}, {"x": 2, "y": 0}, {"x": 1, "y": 0}]
    text["job"]["metrics"] = "epoch {epoch}: val_loss {val_loss}"
    (home.root / name).write_text(yaml.safe_dump(text))
    code, out, err = home.run("sweep", name)
    assert code == 0, (out, err)
    silent, printing, stopped = sorted(trials_of(home), key=lambda one: one["number"])
    assert (silent["status"], silent["value"]) == ("failed", None)
    assert "no_metric" in str(silent["reason"])
    assert (printing["status"], printing["value"]) == ("completed", 0.9)
    # It reached the target of the study, which ends it by a signal.
    assert (stopped["value"], stopped["params"]["x"]) == (0.5, 1)


def test_bad_studies_are_refused_before_anything_runs(home: Home):
    name = study_file(home, [1, 2], [0])
    text = (home.root / name).read_text().replace("objective", "objectiv")
    (home.root / name).write_text(text)
    code, _, err = home.run("sweep", name)
    assert code == 1
    assert "objective" in err


@pytest.mark.extras
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.proof)])
def test_a_study_goes_on_where_it_was_after_kills_of_its_control_plane(home: Home, kills: int):
    """Two trials end before each kill, and two behind the last one."""
    num = 2 * kills + 2
    code, _, err = home.run("sweep", study_file(home, list(range(1, kills + 2)), [0, 1]), "-d")
    assert code == 0, err

    def num_done() -> int:
        return sum(one["status"] == "completed" for one in trials_of(home))

    for number in range(1, kills + 1):
        wait_until(lambda least=2 * number: num_done() >= least, "finished trials")
        os.kill(home.server_pid(), signal.SIGKILL)
    wait_until(lambda: num_done() == num, "the end of the study")
    found = trials_of(home)
    assert len({(one["params"]["x"], one["params"]["y"]) for one in found}) == len(found) == num
    assert len({one["job"] for one in found}) == num
    assert len(json.loads(home.run("ps", "--all", "--json")[1])) == num


# Members with a low rate begin behind the second interval of the others, so that they are the worst then.
FORKED = """
import os, time
from pathlib import Path
import torch
import phalanx.train as pt

run = pt.init(seed=1)
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=run.params["lr"], momentum=0.9)
x = torch.linspace(-1, 1, 16).reshape(16, 1)
data = torch.utils.data.TensorDataset(x, 3 * x)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, opt, loader = run.prepare(model, opt, loader)
run.state.setdefault("rates", [])
meeting = Path(os.environ["MEETING"])
for epoch in run.epochs(6):
    if len(run.state["rates"]) >= 4:
        (meeting / f"ahead-{run.params['lr']}").touch()
    while run.params["lr"] < 1e-4 and len(list(meeting.glob("ahead-*"))) < 2:
        time.sleep(0.05)
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
    run.state["rates"].append(opt.param_groups[0]["lr"])
    run.report(epoch=epoch, val_loss=loss.item())
    print("RATES", run.state["rates"], flush=True)
"""


# A proof: on a quick machine the good members may end before the others report, and then none is forked.
@pytest.mark.proof
@needs_s3
def test_forks_of_a_population_with_an_object_store_find_their_parents_there(home: Home):
    with s3_server(home.root / "s3") as server:
        home.env |= {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": "us-east-1"}
        home.env |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        store = {"store": "s3://bucket/ckpt", "keep": {"last": 1}}
        names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        code, _, err = home.run("secrets", "set", *names)
        assert code == 0, err
        far = {name: home.env[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
        forks = population_of(home, {"checkpoint": store, "secrets": names}, far)
        # Each member and each fork has copies of its own, and forks hold what their parents had.
        folders = {one.name for one in (server.bucket / "ckpt" / "default").iterdir()}
        assert {f"j-{one['job']}" for one in forks} <= folders


@pytest.mark.proof
def test_forks_of_a_population_train_on_with_their_own_rates(home: Home):
    population_of(home, {}, {})


def population_of(home: Home, job: dict[str, object], env: dict[str, str]) -> list[dict[str, Any]]:
    """Train a population of four, of which the slow ones are replaced by forks; returns the forks."""
    name = study_file(home, [1], [0])
    text = yaml.safe_load((home.root / name).read_text())
    text |= {"search": {"method": "pbt", "seed": 1}, "space": {"lr": {"log": [1e-6, 0.5]}}}
    text |= {"trials": {}, "start_with": [{"lr": 0.05}, {"lr": 0.04}, {"lr": 1e-5}, {"lr": 1e-6}]}
    text["population"] = {"size": 4, "every": 2, "max": 6, "quantile": 0.5, "resample": 0.0}
    text["job"] |= {**job, "env": {"MEETING": str(home.root), **env}}
    (home.root / "trial.py").write_text(FORKED)
    (home.root / name).write_text(yaml.safe_dump(text))
    code, out, err = home.run("sweep", name)
    assert code == 0, (out, err)
    found = trials_of(home)
    forks = [one for one in found if one["origin"]["parent"] is not None]
    # How many forks there are depends on which member is quick; in the end there are four members.
    assert forks and sum(one["status"] == "completed" for one in found) == 4, found
    for fork in (one for one in forks if one["status"] == "completed"):
        parent = found[fork["origin"]["parent"]]
        said = home.run("logs", f"j-{fork['job']}")[1]
        rates = json.loads(said.rpartition("RATES ")[2].splitlines()[0])
        # The epochs before the fork are the parent's; those behind it have the fork's own rate.
        before = fork["origin"]["step"]
        assert rates[before - 1] == pytest.approx(parent["params"]["lr"])
        assert rates[before:] == pytest.approx([fork["params"]["lr"]] * (6 - before))
        assert fork["params"] != parent["params"]
    return forks


SURVIVING = """
import torch
import phalanx.train as pt

run = pt.init(seed=7)
model = torch.nn.Linear(1, 1)
begun = model.weight.item()
opt = torch.optim.SGD(model.parameters(), lr=run.params["lr"])
x = torch.linspace(-1, 1, 16).reshape(16, 1)
data = torch.utils.data.TensorDataset(x, 3 * x)
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, opt, loader = run.prepare(model, opt, loader)
for epoch in run.epochs(3):
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    if run.is_main:
        print("EPOCH", epoch, run.world_size, begun, flush=True)
    run.report(epoch=epoch, val_loss=run.params["lr"])
"""


@pytest.mark.extras
def test_the_survivor_gets_more_slots_and_is_trained_again_with_other_seeds(home: Home):
    name = study_file(home, [1], [0])
    text = yaml.safe_load((home.root / name).read_text())
    text |= {"space": {"lr": {"values": [0.1, 0.2, 0.3]}}, "final": {"seeds": 2}, "trials": {}}
    text["job"]["framework"] = "torch"
    text["rungs"] = {"min": 1, "max": 3, "eta": 3, "resources": {3: {"slots_per_node": 2}}}
    (home.root / "trial.py").write_text(SURVIVING)
    (home.root / name).write_text(yaml.safe_dump(text))
    code, out, err = home.run("sweep", name)
    assert code == 0, (out, err)
    assert "retrained   0.1 ± 0 over 2 of 2 seeds" in err

    def epochs(job: object) -> list[list[str]]:
        said = home.run("logs", f"j-{job}")[1].splitlines()
        return [one.split("EPOCH ")[1].split() for one in said if "EPOCH " in one]

    best, *others = sorted(trials_of(home), key=lambda one: (one["value"], one["number"]))
    assert best["params"] == {"lr": 0.1}
    # The survivor's second job goes on behind its first epoch, on two ranks.
    assert [one[:2] for one in epochs(best["job"])] == [["1", "2"], ["2", "2"]]
    finals = [one for one in others if one["origin"]["sampler"] == "final"]
    begun = {epochs(one["job"])[0][2] for one in [*finals, best]}
    assert len(finals) == 2 and len(begun) == 3
    assert all(len(epochs(one["job"])) == 3 for one in finals)


KILLED = """
import os, signal, time
from pathlib import Path
import phalanx.train as pt

run = pt.init()
mark = Path(os.environ["MARKS"], str(run.params["x"]))
for epoch in range(3):
    run.report(epoch=epoch, val_loss=run.params["x"] - epoch)
    if epoch == 1 and not mark.exists():
        mark.touch()
        signal.pause()  # until the test kills the supervisor
"""


@pytest.mark.extras
@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(False, id="before-its-answer", marks=pytest.mark.proof),
        pytest.param(True, id="after-its-answer"),
    ],
)
def test_a_report_counts_once_if_the_supervisor_is_killed_around_it(home: Home, stored: bool):
    name = study_file(home, [5], [0])
    (home.root / "trial.py").write_text(KILLED)
    text = yaml.safe_load((home.root / name).read_text())
    text["job"] |= {"env": {"MARKS": str(home.root)}, "warm": False}
    (home.root / name).write_text(yaml.safe_dump(text))
    code, _, err = home.run("sweep", name, "-d")
    assert code == 0, err
    if stored:
        wait_until(lambda: trials_of(home)[0]["unit"] == 2, "the report of the second epoch")
    else:
        wait_until((home.root / "5").exists, "the second report in the rank's file")
    record = json.loads(next(home.path.glob("jobs/j-1/a*/n0/supervisor.json")).read_text())
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: trials_of(home)[0]["status"] == "completed", "the end of the trial")
    (trial,) = trials_of(home)
    # Each unit was reported by both lives of the trial; only the first report of each counts.
    assert (trial["unit"], trial["value"], trial["job"]) == (3, 3.0, 1)
    (database,) = (home.path / "db").glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(database)) as reader:
        rows = reader.execute("SELECT unit, value FROM trial_reports ORDER BY unit").fetchall()
        (attempts,) = reader.execute("SELECT MAX(attempt) FROM events").fetchone()
    assert [unit for unit, _ in rows] == [1, 2, 3]
    assert attempts == 2


EVALUATOR = """
import json, signal, sys
from pathlib import Path
from phalanx.sdk import PhalanxClient

url, token, num, name, folder = sys.argv[1:]
with PhalanxClient(url, token) as client:
    study = client.studies.open(int(num))
    while trial := study.ask(evaluator=name, lease_s=1.0 if name == "stuck" else 3600.0):
        with open(Path(folder, f"given-{num}"), "a") as given:
            given.write(json.dumps([trial.number, name]) + "\\n")
        if name == "stuck":
            signal.pause()  # until the test kills it
        value = (trial.params["x"] - 2) ** 2
        for told in (value, value + 1):
            study.tell(trial, told)
"""
OUTSIDE = {
    "schema": 1, "kind": "study", "objective": {"metric": "loss"},
    "search": {"method": "random", "seed": 3}, "space": {"x": {"float": [0.0, 4.0]}}, "trials": {"max": 12},
}  # fmt: skip


@pytest.mark.extras
@pytest.mark.parametrize("kills", [(4,), pytest.param((2, 5, 8), marks=pytest.mark.proof)], ids=len)
def test_asked_trials_outlive_kills_of_the_control_plane_and_of_an_evaluator(
    tmp_path: Path, kills: tuple[int, ...]
):
    """None is lost or given twice, a repeated result changes nothing, suggestions are the same."""
    platform = Platform(tmp_path)
    platform.slots = ("--slots", "1", "--port", str(free_port()))
    platform.up()
    server = json.loads((platform.home / "server.json").read_text())

    def evaluator(num: int, name: str) -> subprocess.Popen[bytes]:
        words = [server["url"], server["token"], str(num), name, str(tmp_path)]
        return subprocess.Popen([sys.executable, "-c", EVALUATOR, *words])

    def given(num: int) -> list[list[Any]]:
        file = tmp_path / f"given-{num}"
        return [json.loads(one) for one in file.read_text().splitlines()] if file.exists() else []

    children = []
    try:
        with platform.client() as client:
            for num in (1, 2):
                assert client.studies.create(OUTSIDE).num == num
        children.append(evaluator(1, "calm"))
        assert children[0].wait(GUARD_S) == 0
        children.append(evaluator(2, "stuck"))
        wait_until(lambda: given(2), "a trial with the first evaluator")
        children[1].kill()
        children += [evaluator(2, "one"), evaluator(2, "other")]
        for num_given in kills:
            wait_until(lambda least=num_given: len(given(2)) >= least, "trials with evaluators")
            kill(platform.server_pid())
            assert platform.process is not None
            platform.process.wait(GUARD_S)
            platform.up()
        assert [child.wait(GUARD_S) for child in children[2:]] == [0, 0]
        with platform.client() as client:
            calm, killed = (client.studies.open(num) for num in (1, 2))
            assert killed.view().state == "succeeded"
            found = [(one.number, one.params, one.value, one.status) for one in killed.trials()]
            assert found == [
                (one.number, one.params, one.value, "completed") for one in calm.trials()
            ]
        # Only the trial of the evaluator that was killed was given again.
        assert sorted(number for number, _ in given(2)) == [0, *range(12)]
        assert next(name for number, name in given(2) if number == 0) == "stuck"
    finally:
        for child in children:
            child.kill()
            child.wait()
        platform.down()


@pytest.mark.extras
def test_the_example_study_on_digits_pauses_losers_at_rungs(home: Home):
    text = yaml.safe_load((DIGITS / "study.yaml").read_text())
    text["trials"] = {"max": 3, "parallel": 3}
    text["rungs"] |= {"max": 3}
    (home.root / "train.py").write_text((DIGITS / "train.py").read_text())
    (home.root / "digits.yaml").write_text(yaml.safe_dump(text))
    code, out, err = home.run("sweep", "digits.yaml")
    assert code == 0, (out, err)
    found = trials_of(home)
    assert sorted(one["status"] for one in found).count("completed") == 1
    best = json.loads(home.run("sweep", "best", "s-1", "--json")[1])
    assert best["value"] == min(one["value"] for one in found)
