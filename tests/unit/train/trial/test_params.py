"""`run.params(...)`: what a script records, on rank 0, flat."""

from __future__ import annotations

import argparse
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.core.contract.records import ParamsRecord
from phalanx.core.contract.trial import TrialContract
from phalanx.errors import UserError
from phalanx.kit.clock import ManualClock
from phalanx.train.trial.params import Params
from phalanx.train.trial.reporting import TrialReporter

pytestmark = pytest.mark.unit


def params(written: list[Any], *, is_main: bool = True) -> Params:
    info = SimpleNamespace(
        trial=TrialContract(params={"lr": 0.5}), is_main=is_main, report_file=None
    )
    report = SimpleNamespace(write=written.append)
    trial = TrialReporter(info, None, report, None, ManualClock(0))  # type: ignore[arg-type]
    return Params(info.trial.params, trial.record_params)


def test_what_is_given_is_written_flat_and_the_parameters_of_the_trial_stay() -> None:
    written: list[ParamsRecord] = []
    own = params(written)
    own(argparse.Namespace(lr=0.1, deep={"n": 3}), lr=0.2, scale=torch.tensor(2.0))
    own({"amp": True})
    assert [dict(one.values) for one in written] == [
        {"lr": 0.2, "deep.n": 3, "scale": 2.0},
        {"amp": True},
    ]
    assert own.lr == 0.5
    assert pickle.loads(pickle.dumps(own)) == own
    with pytest.raises(UserError, match=r"run.params: int has no parameters"):
        own(3)


def test_other_ranks_write_nothing() -> None:
    written: list[ParamsRecord] = []
    params(written, is_main=False)(lr=0.1)
    assert written == []
