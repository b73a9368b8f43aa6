"""From a command line to a spec, and what of the caller's environment goes along."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cli.client.invocation import Invocation, forward_environment
from phalanx.cli.client.run_spec import RunFlags, plan_run, split_env
from phalanx.cli.verbs.submit import _with_checkpoint
from phalanx.errors import SpecInvalid, UserError

pytestmark = pytest.mark.unit


@pytest.fixture
def invocation(tmp_path: Path) -> Invocation:
    (tmp_path / "train.py").write_text("print()\n")
    return Invocation({"PATH": "/usr/bin:/bin"}, tmp_path, "/venv/bin/python")


def test_a_script_runs_with_the_callers_python(invocation: Invocation):
    planned = plan_run(["train.py", "--epochs", "5"], RunFlags(ranks_per_node=3), invocation)
    assert planned.spec.run == ["/venv/bin/python", "-u", "train.py", "--epochs", "5"]
    assert planned.spec.name == "train"
    assert planned.spec.shape.world_size == 3
    assert planned.root == invocation.cwd


def test_a_script_elsewhere_brings_its_own_folder(invocation: Invocation, tmp_path: Path):
    inner = tmp_path / "inner"
    inner.mkdir()
    planned = plan_run(
        ["../train.py"], RunFlags(), Invocation(invocation.env, inner, invocation.python)
    )
    assert planned.root is not None and planned.root.resolve() == tmp_path.resolve()
    assert planned.spec.run[2] == "train.py"


def test_a_script_below_is_named_from_the_callers_folder(invocation: Invocation, tmp_path: Path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "fit it.py").write_text("")
    planned = plan_run([str(tmp_path / "jobs" / "fit it.py")], RunFlags(), invocation)
    assert planned.spec.run[2] == "jobs/fit it.py"
    assert planned.spec.name == "fit-it"


def test_nobody_sends_their_whole_home_folder(invocation: Invocation, tmp_path: Path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.py").write_text("")
    at_home = Invocation({**invocation.env, "HOME": str(tmp_path)}, tmp_path, invocation.python)
    assert plan_run(["jobs/a.py"], RunFlags(), at_home).root == tmp_path / "jobs"
    assert plan_run(["true"], RunFlags(), at_home).root is None


def test_packages_come_along_by_flags(invocation: Invocation, tmp_path: Path):
    (tmp_path / "needs.txt").write_text("einops\n")
    flags = RunFlags(requirements="needs.txt", packages=("attrs",))
    python = plan_run(["train.py"], flags, invocation).spec.python
    assert python is not None
    assert (python.requirements, python.packages) == ("needs.txt", ["attrs"])
    # On top of what the script says itself.
    (tmp_path / "own.py").write_text(
        '# /// script\n# [tool.phalanx]\n# python = ["einops"]\n# ///\n'
    )
    python = plan_run(["own.py"], RunFlags(packages=("attrs",)), invocation).spec.python
    assert python is not None and python.packages == ["einops", "attrs"]


def test_a_requirements_file_must_be_in_the_folder_that_is_sent(
    invocation: Invocation, tmp_path: Path
):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "train.py").write_text("")
    (tmp_path / "needs.txt").write_text("")
    inside = Invocation(invocation.env, inner, invocation.python)
    with pytest.raises(UserError, match="outside the folder that is sent"):
        plan_run(["train.py"], RunFlags(requirements="../needs.txt"), inside)


def test_modules_and_commands(invocation: Invocation):
    module = plan_run(["--x"], RunFlags(module="pkg.fit"), invocation).spec
    assert (module.run, module.name) == (["/venv/bin/python", "-u", "-m", "pkg.fit", "--x"], "fit")
    assert plan_run(["true", "x"], RunFlags(), invocation).spec.run == ["true", "x"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to run"),
        (["missing.py"], r"missing\.py: no such file"),
        (["./a.out"], r"\./a\.out: no such file"),
        (["./train"], r"\./train: is not executable"),
        (["no-such-command-here"], "no such command"),
        (["folder.py"], "is a folder"),
        (["broken.py"], r"broken\.py, line 2: .*the line reads: def f\(:"),
        (["double.py"], "more than one"),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(invocation: Invocation, words, says):
    (invocation.cwd / "folder.py").mkdir()
    (invocation.cwd / "train").write_text("")
    (invocation.cwd / "broken.py").write_text("x = 1\ndef f(:\n")
    (invocation.cwd / "double.py").write_text("# /// script\n# x = 1\n# ///\nprint()\n" * 2)
    with pytest.raises(UserError, match=says):
        plan_run(words, RunFlags(), invocation)


def test_flags_override_the_defaults_in_the_script(invocation: Invocation):
    (invocation.cwd / "train.py").write_text(
        "# /// script\n# [tool.phalanx]\n# priority = 70\n# name = 'mine'\n"
        "# resources = {slots_per_node = 2, nodes = 2}\n# warm = {imports = ['json']}\n"
        "# checkpoint = {every = '1 epoch', keep = {last = 1}}\n# ///\n"
    )
    spec = plan_run(["train.py"], RunFlags(), invocation).spec
    assert (spec.name, spec.priority, spec.shape.world_size) == ("mine", 70, 4)
    flags = RunFlags(
        ranks_per_node=3, priority=10, checkpoint_every="5s", warm_imports=["csv"], env={"A": "1"}
    )
    spec = plan_run(["train.py"], flags, invocation).spec
    assert (spec.priority, spec.shape.slots_per_node, spec.shape.nodes) == (10, 3, 2)
    assert (spec.checkpoint.every, spec.checkpoint.keep.last) == ("5s", 1)
    assert (spec.warm.imports, spec.env) == (["json", "csv"], {"A": "1"})
    assert plan_run(["train.py"], RunFlags(cold=True), invocation).spec.warm.enabled is False


@pytest.mark.parametrize(
    ("table", "path"), [("run = 'x'", "tool.phalanx.run"), ("prioriti = 1", "prioriti")]
)
def test_bad_defaults_in_the_script_are_problems(invocation: Invocation, table, path):
    (invocation.cwd / "train.py").write_text(f"# /// script\n# [tool.phalanx]\n# {table}\n# ///\n")
    with pytest.raises(SpecInvalid) as caught:
        plan_run(["train.py"], RunFlags(), invocation)
    assert [one.path for one in caught.value.problems] == [path]


def test_env_flags():
    assert split_env(["A=1", "B", "C="]) == ({"A": "1", "C": ""}, ["B"])
    with pytest.raises(UserError, match="no name"):
        split_env(["=x"])


def test_flags_for_scripts_that_know_nothing_of_it(invocation, tmp_path):
    (tmp_path / "train.py").write_text("")
    flags = RunFlags(framework="horovod", metrics=["loss {loss}"], checkpoint_directory="out")
    spec = plan_run(["train.py"], flags, invocation).spec
    assert (spec.framework, spec.metrics) == ("horovod", ["loss {loss}"])
    assert (spec.checkpoint.directory, spec.checkpoint.continues) == ("out", False)
    flags = RunFlags(checkpoint_directory="out", continues=True)
    assert plan_run(["train.py"], flags, invocation).spec.checkpoint.continues
    assert plan_run(["train.py"], RunFlags(continues=True), invocation).spec.checkpoint.continues


def test_the_end_without_a_last_checkpoint_is_chosen_by_a_flag(invocation):
    (invocation.cwd / "train.py").write_text("")

    def spec(flag):
        return plan_run(["train.py"], RunFlags(on_final_failure=flag), invocation).spec

    assert spec(None).checkpoint.on_final_failure == "succeed"
    assert spec("fail").checkpoint.on_final_failure == "fail"
    key = "on_final_failure"
    assert _with_checkpoint(spec(None), key, "fail") == spec("fail")
    for wrong in (lambda: spec("give up"), lambda: _with_checkpoint(spec(None), key, "give up")):
        with pytest.raises(SpecInvalid) as refused:
            wrong()
        assert [one.path for one in refused.value.problems] == ["checkpoint.on_final_failure"]


def test_variables_that_are_not_utf8_stay_behind_and_are_named():
    forwarded = forward_environment({"A": "1", "ODD": "b\udce4d", "\udce4": "x"}, [])
    assert (forwarded.env, forwarded.not_utf8) == ({"A": "1"}, ("ODD", "\ufffd"))
