"""The verbs archive, pin, delete, projects set and admin retention, on a real control plane."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from integration.test_control_deletion import SMALL, ended, held_up, sweep
from phalanx.cli.app import app
from phalanx.cli.verbs import jobs as job_verbs
from phalanx.cli.verbs import pools
from phalanx.cli.verbs.retention import jobs, periods
from phalanx.errors import Conflict, NotFound, PlatformError, UserError

pytestmark = pytest.mark.integration
Run = Callable[..., str]


@pytest.fixture
def run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Run:
    for module in (jobs, job_verbs, periods, pools):
        monkeypatch.setattr(module, "connected", lambda ctx: nullcontext(rig.client))

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=True)
        if isinstance(done.exception, PlatformError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return invoke


def test_archived_jobs_are_listed_on_request(rig: Rig, run: Run) -> None:
    num = ended(rig)
    assert run("archive", f"j-{num}") == f"j-{num} archived\n"
    assert "no such jobs" in run("ps", "--name", "digits")
    assert f"j-{num}" in run("ps", "--archived") and f"j-{num}" in run("ps", "--all-archived")
    assert "archived by user:admin" in run("show", f"j-{num}")
    run("unarchive", f"j-{num}")
    assert f"j-{num}" in run("ps", "--name", "digits")


def test_jobs_are_chosen_by_filters_and_what_is_pinned_stays(rig: Rig, run: Run) -> None:
    first, second, live = ended(rig), ended(rig), rig.submit(resources=SMALL)
    run("pin", f"j-{second}")
    assert "by user:admin" in run("show", f"j-{second}")
    said = run("delete", "--name", "digits", "--dry-run")
    assert "1 jobs would be deleted with 2 checkpoints (200 B)" in said and "is pinned by" in said
    found = json.loads(run("delete", "--name", "digits", "--dry-run", "--json"))
    assert [one["num"] for one in found] == [second, first]
    with pytest.raises(UserError, match="no terminal to ask"):
        run("delete", "--name", "digits")
    with pytest.raises(Conflict, match="is pinned"):
        run("delete", f"j-{first}", f"j-{second}", "--yes")
    assert rig.job(first).state == "succeeded"
    said = run("delete", "--name", "digits", "--yes")
    assert f"j-{first} deleted" in said and f"j-{second} stays" in said
    with pytest.raises(NotFound):
        rig.job(first)
    assert rig.job(second).state == "succeeded" and not rig.job(live).is_terminal


def test_copies_of_a_deleted_job_are_given_up(rig: Rig, run: Run) -> None:
    num = held_up(rig)
    assert "does not see the folder" in run("admin", "retention")
    with pytest.raises(UserError, match="nothing was given up: there is no terminal"):
        run("delete", f"j-{num}", "--abandon")
    for words in (("--name", "digits"), (f"j-{num}", "--dry-run")):
        with pytest.raises(UserError, match="--abandon takes the names of deleted jobs"):
            run("delete", "--abandon", *words)
    said = run("delete", f"j-{num}", "--abandon", "--yes")
    assert said.startswith(f"j-{num}: 1 copies (90 B) stay in file:///")
    (found,) = json.loads(run("delete", f"j-{num}", "--abandon", "--yes", "--json"))
    assert (found["label"], found["abandoned_by"]) == (f"j-{num}", "user:admin")
    sweep(rig)
    said = run("admin", "retention")
    assert "GIVEN UP" in said and "NEXT TRY" not in said


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("j-1", "--name", "a"),
        ("--state", "running"),
        ("--label", "x"),
        ("--older-than", "soon"),
    ],
    ids=" ".join,
)
def test_what_is_not_clear_deletes_nothing(rig: Rig, run: Run, words: tuple[str, ...]) -> None:
    num = ended(rig)
    with pytest.raises(UserError):
        run("delete", *words, "--yes")
    assert rig.job(num).state == "succeeded"


def test_periods_are_set_and_what_expires_is_shown(rig: Rig, run: Run) -> None:
    said = run("projects", "set", "default", "--retain", "logs=30d,jobs=1y")
    assert "jobs         365d\n" in said and "code         7d  (default)" in said
    num = ended(rig)
    assert ": jobs" in run("show", f"j-{num}")
    assert "jobs 365d" in run("projects", "show", "default")
    rig.clock.advance(400 * 86_400.0)
    said = run("admin", "retention", "--dry-run")
    assert f"j-{num}" in said and "the job" in said and "1 jobs" in said
    for wrong in ("logs", "logs=", "events=3d", "logs=1d,logs=2d", "logs=5m"):
        with pytest.raises(UserError):
            run("projects", "set", "default", "--retain", wrong)
    said = run("projects", "set", "default", "--retain", "logs=default,jobs=forever")
    assert "jobs         forever\n" in said and "logs         forever  (default)" in said
