"""`phalanx recipe train` with the flags of a search: half of one is refused, a whole one is a study."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from phalanx.cli.client.invocation import Invocation
from phalanx.cli.verbs.recipe import recipe_app
from phalanx.errors import SpecInvalid, UserError
from phalanx.schemas.api.studies import SubmitStudyRequest
from phalanx.schemas.spec.study import validate_study
from phalanx.schemas.spec.study_checks import study_problems

pytestmark = pytest.mark.unit
GPT = ("train", "--model", "gpt", "--dataset", "book.txt")


class Studies:
    """The calls of a control plane that accepts every valid study."""

    def __init__(self) -> None:
        self.checked: list[SubmitStudyRequest] = []
        self.submitted: list[SubmitStudyRequest] = []

    def check(self, request: SubmitStudyRequest) -> None:
        assert study_problems(validate_study(request.spec)) == []
        self.checked.append(request)

    def submit(self, request: SubmitStudyRequest) -> Any:
        self.submitted.append(request)
        return SimpleNamespace(study=SimpleNamespace(label="s-1"))


class FakeSession:
    """A session whose control plane has these studies, and all code already."""

    url = None

    def __init__(self, root: Path) -> None:
        env = {"PATH": "/usr/bin", "FLAVOUR": "plain", "USER": "ada", "PHALANX_HOME": "away"}
        self.invocation = Invocation(env, root, sys.executable)
        self.home, self.studies = root / "home", Studies()

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        yield SimpleNamespace(studies=self.studies, has_code=lambda digest: True)


@pytest.fixture
def session(tmp_path: Path) -> FakeSession:
    root = tmp_path / "project"
    root.mkdir()
    (root / "book.txt").write_text("a text")
    (root / "space.yaml").write_text("{lr: {log: [0.0001, 0.01]}, batch-size: [16, 32]}")
    return FakeSession(root)


def train(session: FakeSession, *words: object) -> Result:
    return CliRunner().invoke(recipe_app, [str(word) for word in words], obj=session)


WHOLE = (*GPT, "--num-trials", 6, "--search-space", "space.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*GPT, "--num-trials", 6), "--num-trials: a search needs both"),
        ((*GPT, "--search-space", "space.yaml"), "--search-space: a search needs both"),
        ((*GPT, "--gpus-per-trial", 2), "--gpus-per-trial: a search needs both"),
        ((*WHOLE, "--gpus-per-trial", 2, "-n", 2), "--gpus-per-trial and -n: both say"),
        ((*WHOLE, "--gpus-per-trial", 2, "--nodes", "2"), "--gpus-per-trial and --nodes: both"),
        ((*WHOLE, "--all-ranks"), "--all-ranks: a study is followed"),
    ],
)
def test_half_of_a_search_is_refused_at_once(session, words, said):
    done = train(session, *words)
    assert type(done.exception) is UserError and str(done.exception).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-workers", 2), "--gpus-per-trial and --num-workers: both say"),
        (("--gpus-per-worker", 2), "--gpus-per-trial 3: is no multiple of --gpus-per-worker, 2"),
    ],
)
def test_the_size_of_a_trial_is_said_once(session, words, said):
    done = train(session, *WHOLE, "--gpus-per-trial", 3, *words)
    assert type(done.exception) is UserError and str(done.exception).startswith(said)


def test_a_dry_run_prints_the_file_of_the_study(session):
    done = train(session, *WHOLE, "--gpus-per-trial", 2, "--epochs", 9, "--seed", 7, "--dry-run")
    assert done.exception is None, done.exception
    study = yaml.safe_load(done.output)
    assert study_problems(validate_study(study)) == []
    job = study.pop("job")
    assert study == {
        "schema": 1,
        "kind": "study",
        "name": "gpt",
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "search": {"method": "auto", "seed": 7},
        "space": {"lr": {"log": [0.0001, 0.01]}, "batch-size": {"values": [16, 32]}},
        "trials": {"max": 6},
        "rungs": {"rule": "asha", "unit": "epoch", "min": 1, "max": 9},
    }
    assert job["resources"] == {"slots_per_rank": 1, "accelerators": 2}
    assert job["run"][2:] == [
        *("-m", "phalanx.train.programs.recipes", *GPT[1:], "--epochs", "9", "--seed", "7")
    ]
    assert len(session.studies.checked) == 1 and not session.studies.submitted


def test_a_study_is_submitted_like_a_run(session):
    done = train(session, *WHOLE, "--epochs", 2, "--name", "rates", "-d")
    assert done.exception is None, done.exception
    assert done.output.split()[-1] == "s-1"
    (request,) = session.studies.submitted
    spec = validate_study(request.spec)
    assert (spec.name, spec.rungs, spec.trials.max) == ("rates", None, 6)
    assert (request.kind, request.caller_cwd) == ("run", str(session.invocation.cwd))
    assert request.caller_env == {"PATH": "/usr/bin", "FLAVOUR": "plain", "USER": "ada"}
    assert request.code is not None and request.owner == "ada"


def test_a_bad_space_is_named_before_anything_runs(session):
    (session.invocation.cwd / "space.yaml").write_text("lr: {log: [0.1, 0.01]}")
    done = train(session, *WHOLE)
    assert isinstance(done.exception, SpecInvalid) and "space.lr" in str(done.exception)
    (session.invocation.cwd / "space.yaml").write_text("learn_rate: [0.1, 0.01]")
    done = train(session, *WHOLE)
    assert done.exit_code == 1 and not session.studies.checked
