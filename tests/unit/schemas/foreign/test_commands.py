"""Command lines of launchers: what is unwrapped, and what runs once on each node as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.schemas.foreign.commands import CommandPlan, read_script, read_words

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("line", "run", "ranks"),
    [
        ("torchrun --nproc-per-node 4 a.py --x 1", "python -u a.py --x 1", 4),
        ("/opt/bin/torchrun --nproc_per_node=gpu -m pkg.train", "python -u -m pkg.train", 0),
        ("python3 -m torch.distributed.run --nproc_per_node=$N a.py", "python3 -u a.py", 2),
        (
            "python -u -m torch.distributed.launch --use_env --nproc_per_node=2 a.py",
            "python -u a.py",
            2,
        ),
        ("torchrun --no-python --nproc-per-node=2 ./a.sh b", "./a.sh b", 2),
        ("fabric run --devices 2 a.py", "python -u a.py", 2),
    ],
)
def test_a_launcher_is_replaced_by_its_program(line: str, run: str, ranks: int) -> None:
    plan = read_words(line.split(), {"N": "2"})
    assert plan.launched
    assert plan.run == run.split()
    assert plan.ranks == ranks


def test_numbers_of_a_launcher_are_kept() -> None:
    plan = read_words(
        ["torchrun", "--nnodes", "2:4", "--max-restarts=3", "--rdzv-id=x", "a.py"], {}
    )
    assert (plan.nodes, plan.restarts) == ((2, 4), 3)
    assert plan.notes == ["flags of the launcher that have no effect: rdzv_id"]
    words = "accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 a.py"
    plan = read_words(words.split(), {})
    assert (plan.total_ranks, plan.nodes) == (8, (2, 2))
    assert plan.env == {"ACCELERATE_MIXED_PRECISION": "bf16"}


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --unknown-flag a.py",
        "torchrun",
        "accelerate launch --config_file x.yaml a.py",
        "python train.py",
        "python -m pkg",
        "deepspeed a.py",
    ],
)
def test_other_commands_stay_as_they_are(line: str) -> None:
    assert read_words(line.split(), {}) == CommandPlan(line.split())


def test_lines_before_a_launcher_are_the_setup() -> None:
    plan = read_words(["bash", "-c", "pip install x && torchrun --nproc-per-node=2 a.py"], {})
    assert plan.run == ["python", "-u", "a.py"] and plan.ranks == 2
    assert plan.setup == "pip install x || exit"


def test_nothing_runs_after_a_command_that_failed(tmp_path: Path) -> None:
    """Also where a chain with `&&` is not the last one, and where the shell goes on behind it."""
    text = (
        "false && touch never; touch one; true && touch two\nfalse && touch never && torchrun a.py"
    )
    plan = read_script(text, {})
    assert plan.launched and plan.setup is not None
    done = subprocess.run(["sh", "-c", plan.setup], cwd=tmp_path)
    assert done.returncode == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["one", "two"]
    text = "cd src && export A=1\ncd data && torchrun a.py"
    assert read_script(text, {}).run == ("cd src\nexport A=1\ncd data || exit\nexec python -u a.py")


def test_lines_that_change_the_environment_run_in_each_rank() -> None:
    text = """#!/bin/bash
    export GPUS=4   # on each node
    pip install x
    cd src; torchrun \\
      --nproc_per_node=$GPUS a.py "$DATA"
    """
    plan = read_script(text, {})
    assert plan.ranks == 4
    assert plan.setup == "export GPUS=4\npip install x\ncd src"
    assert plan.run == ('export GPUS=4\ncd src\nexec python -u a.py "$DATA"')


@pytest.mark.parametrize(
    "text",
    [
        "for i in 1 2; do torchrun a.py; done",
        "torchrun a.py; torchrun b.py",
        "torchrun a.py\necho done",
        "cat <<E\nx\nE\ntorchrun a.py",
        "echo 'a\nb'\ntorchrun a.py",
    ],
)
def test_unclear_texts_run_once_on_each_node_with_a_warning(text: str) -> None:
    plan = read_script(text, {})
    assert (plan.run, plan.launched, len(plan.notes)) == (text, False, 1)


@given(st.text(alphabet="torchun -m=$'\"\\;&|\n#apy.{}", max_size=60))
def test_no_text_crashes_the_reading(text: str) -> None:
    plan = read_script(text, {})
    assert plan.run == text or plan.launched
