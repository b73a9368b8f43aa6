"""A run as a trial: it pauses at its target, and a promoted one equals one that was never paused."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.contract import records
from phalanx.train.trial.params import Params

pytestmark = pytest.mark.integration

SCRIPT = """
import sys, torch, phalanx.train as pt
run = pt.init(seed=3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=run.params.get("lr", 0.1))
sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.9)
data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, opt, sched, loader = run.prepare(model, opt, sched, loader)
run.state.setdefault("seen", [])
for epoch in run.epochs(6):
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if run.params.get("reject"):
            run.reject("too small")
    sched.step()
    noise = torch.rand(()).item()  # an evaluation that draws
    run.state["seen"].append((epoch, noise))
    run.report(epoch=epoch, val_loss=loss)
rates = (opt.param_groups[0]["lr"], sched.get_last_lr()[0], sched.base_lrs[0])
if run.is_main:
    torch.save((run.unwrap(model).state_dict(), run.state["seen"], rates), sys.argv[1])
"""


def start(
    tmp: Path,
    name: str,
    until: int | None,
    code: int = 0,
    ranks: int = 1,
    env: dict[str, str] | None = None,
    **params: object,
) -> list:
    given = env or {}
    script, report = tmp / "script.py", tmp / f"{name}-{until}.report"
    script.write_text(SCRIPT)
    env = {**os.environ, "PHALANX_STUDY": "1", "PHALANX_TRIAL_OBJECTIVE": "val_loss"}
    env |= {"PHALANX_REPORT_FILE": str(report), "PHALANX_CHECKPOINT_DIR": str(tmp / name)}
    env["PHALANX_PARAMS"] = json.dumps(params)
    if until is not None:
        env["PHALANX_TRIAL_UNTIL"] = str(until)
    env |= given
    if ranks > 1:
        world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port())}
        env |= world | {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, script, tmp / f"{name}.pt"],
            env=env if ranks == 1 else env | _place(tmp, report, rank),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [one.communicate()[1] for one in started]
    assert [one.returncode for one in started] == [code] * ranks, said
    body = report.read_bytes()
    size = records.committed_length(body[:64])
    return [
        records.from_json(one)[1]
        for _, one in records.decode(body[64 : 64 + size])
        if one["k"] in ("report", "stopped", "done")
    ]


def _files(folder: str) -> list[tuple[Path, bytes]]:
    return sorted((one, one.read_bytes()) for one in Path(folder).rglob("*") if one.is_file())


def _port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _place(tmp: Path, report: Path, rank: int) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    return own if rank == 0 else own | {"PHALANX_REPORT_FILE": str(tmp / f"{report.stem}-{rank}.r")}


@pytest.mark.proof
def test_three_ranks_pause_together_and_are_promoted_exactly(tmp_path: Path) -> None:
    import torch

    whole = start(tmp_path, "whole", None, ranks=3)
    start(tmp_path, "paused", 2, ranks=3)
    rest = start(tmp_path, "paused", 9, ranks=3)
    values = {one.unit: one.value for one in whole if one.kind == "report"}
    assert [(one.unit, one.value) for one in rest[:-1]] == list(values.items())[1:]
    one, other = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "paused"))
    assert one[1:] == other[1:]
    assert all(torch.equal(one[0][key], other[0][key]) for key in one[0])


@pytest.mark.extras
def test_a_target_that_is_raised_while_the_trial_holds_costs_no_restart(tmp_path: Path) -> None:
    (tmp_path / "held-2.target").write_text("9")
    env = {"PHALANX_TRIAL_HOLD": "60s"}
    found = start(tmp_path, "held", 2, env=env)
    assert [one.unit for one in found if one.kind == "report"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.proof
def test_a_promoted_trial_equals_one_that_was_never_paused(tmp_path: Path) -> None:
    whole = start(tmp_path, "whole", None)
    *below, reported, stopped = start(tmp_path, "paused", 2)
    assert [one.unit for one in below] == [1]
    assert (reported.unit, reported.final) == (2, True)
    assert Path(reported.checkpoint, "MANIFEST.json").exists()
    assert (stopped.saved, stopped.target) == (True, 2)
    again = start(tmp_path, "paused", 2)  # killed before the report was stored: the same again
    assert [type(one) for one in again] == [type(reported), type(stopped)]
    assert (again[0].unit, again[0].value) == (2, reported.value)
    rest = start(tmp_path, "paused", 4) + start(tmp_path, "paused", 9)
    values = {one.unit: one.value for one in [*below, reported, *rest] if one.kind == "report"}
    assert values == {one.unit: one.value for one in whole if one.kind == "report"}
    assert (tmp_path / "paused.pt").stat().st_size
    import torch

    one, other = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "paused"))
    assert one[1] == other[1]
    assert all(torch.equal(one[0][key], other[0][key]) for key in one[0])


@pytest.mark.proof
def test_a_fork_has_the_parents_state_and_its_own_rate(tmp_path: Path) -> None:
    import torch

    *_, reported, _ = start(tmp_path, "parent", 2, lr=0.1)
    before = _files(reported.checkpoint)
    fork = {"PHALANX_FORK_OF": f"j-1:{reported.checkpoint}", "PHALANX_TRIAL": "1"}
    assert [one.unit for one in start(tmp_path, "same", None, env=fork, lr=0.1)[:-1]] == [
        3,
        4,
        5,
        6,
    ]
    start(tmp_path, "other", None, env=fork, lr=0.3)
    after = _files(reported.checkpoint)
    assert after == before
    start(tmp_path, "parent", 9, lr=0.1)
    parent, same, other = (
        torch.load(tmp_path / f"{name}.pt") for name in ("parent", "same", "other")
    )
    assert (parent[1:], len(parent[0])) == (same[1:], 4)
    assert all(torch.equal(parent[0][key], same[0][key]) for key in same[0])
    assert other[2] == pytest.approx((0.3 * 0.9**6, 0.3 * 0.9**6, 0.3))


@pytest.mark.extras
def test_a_trial_that_rejects_its_params_says_why(tmp_path: Path) -> None:
    assert start(tmp_path, "bad", None, code=1, reject=True) == []


def test_params_are_frozen_and_have_attributes() -> None:
    params = Params({"lr": 0.1, "get": 3})
    assert (params.lr, params["get"], params.get("x", 7), dict(params)["lr"]) == (0.1, 3, 7, 0.1)
    assert pickle.loads(pickle.dumps(params)) == params
    with pytest.raises(AttributeError, match="do not change"):
        params.lr = 0.2
    with pytest.raises(AttributeError, match="there is no parameter momentum; there are: lr, get"):
        _ = params.momentum
