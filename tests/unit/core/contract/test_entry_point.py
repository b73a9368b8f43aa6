"""What a command runs, as listings show it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.job import RankCommand

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --epochs 30", "train.py"),
        (["torchrun", "--nproc-per-node", "8", "./train.py", "--lr", "0.1"], "train.py"),
        ("torchrun --nproc-per-node 8 -m acme.train --resume last.py", "acme.train"),
        ("python -m torch.distributed.run --nproc-per-node 2 a/train.py", "a/train.py"),
        ("python -m pkg.train", "pkg.train"),
        ("cd src && LR=3 python3 -u train.py; echo done", "train.py"),
        ("LR=2 ./simulate 3", "simulate"),
        ("python -c 'print(1)'", "python"),
        (["bash", "-c", "exec python train.py"], "train.py"),
        ("mpirun -np 2 bash run.sh", "run.sh"),
        ("python 'my train.py'", "python"),
        ("echo 'not closed", "echo"),
        ("LR=2", ""),
    ],
)
def test_the_entry_point_of_a_command(command: str | list[str], expected: str) -> None:
    assert RankCommand.of(command).entry_point == expected


@given(st.one_of(st.text(max_size=40), st.lists(st.text(max_size=9), max_size=6)))
def test_every_command_has_one_without_an_error(command: str | list[str]) -> None:
    assert isinstance(RankCommand.of(command).entry_point, str)
