"""Which commands a warm process can run, and how each starts cold."""

import sys
from pathlib import Path

import pytest

from phalanx.launch.command import cold_argv, parse_python, same_python, sensitive, words

pytestmark = pytest.mark.unit

ENV = {"PATH": str(Path(sys.executable).parent)}


def parse(command, workdir="/job"):
    return parse_python(command, workdir=workdir, env=ENV)


@pytest.mark.parametrize(
    ("command", "kind", "target", "args"),
    [
        (["python", "train.py", "-u", "x"], "script", "/job/train.py", ("-u", "x")),
        (["python3", "/abs/t.py"], "script", "/abs/t.py", ()),
        ([sys.executable, "-u", "sub/t.py"], "script", "/job/sub/t.py", ()),
        (["python", "-m", "pkg.job", "--lr", "1"], "module", "pkg.job", ("--lr", "1")),
        (
            "python train.py 'two words' \"quoted\"",
            "script",
            "/job/train.py",
            ("two words", "quoted"),
        ),
        ("  python -u -m job", "module", "job", ()),
    ],
)
def test_recognised(command, kind, target, args):
    found = parse(command)
    assert (found.kind, found.target, found.args) == (kind, target, args)
    assert found.python.startswith("/")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py | tee log",
        "python train.py > out",
        "python $SCRIPT",
        "python train.py &",
        "X=1 python train.py",
        "python train.py *.txt",
        "cd x && python train.py",
        "python 'open",
        "",
        [],
        ["python"],
        ["python", "-c", "print()"],
        ["python", "-O", "train.py"],
        ["python", "-m"],
        ["bash", "train.sh"],
        ["pythonic", "train.py"],
        ["python9.99", "train.py"],
        ["torchrun", "train.py"],
        ["python", "job.pyz"],
        ["python", "."],
    ],
)
def test_everything_else_starts_cold(command):
    assert parse(command, workdir="/") is None


def test_a_cold_module_comes_from_the_work_directory():
    found = parse(["python", "-u", "-m", "job", "x"])
    assert found.argv()[1:] == ["-u", "-P", "-m", "job", "x"]
    assert found.cold_env({"PYTHONPATH": "/lib"})["PYTHONPATH"] == "/job:/lib"
    assert found.cold_env({})["PYTHONPATH"] == "/job"


def test_a_cold_script_changes_nothing():
    found = parse(["python", "train.py"])
    assert found.argv()[1:] == ["/job/train.py"]
    assert found.cold_env({"A": "b"}) == {"A": "b"}


def test_cold_argv_finds_the_program(tmp_path):
    tool = tmp_path / "tool"
    tool.touch(mode=0o755)
    assert cold_argv(["./tool", "x"], workdir=str(tmp_path), env={}) == [str(tool), "x"]
    path = {"PATH": str(tmp_path)}
    assert cold_argv(["tool"], workdir="/", env=path) == [str(tool)]
    assert cold_argv("tool | cat", workdir="/", env={}) == ["/bin/sh", "-c", "tool | cat"]
    for missing in (["tool"], ["./none"], []):
        with pytest.raises(FileNotFoundError):
            cold_argv(missing, workdir="/", env={})


def test_words_need_no_shell():
    assert words("a 'b c'") == ["a", "b c"]
    assert words("a; b") is None
    assert words(["a;", "b"]) == ["a;", "b"]


def test_only_what_counts_at_the_start_is_sensitive():
    env = {
        "PYTHONHASHSEED": "1",
        "LD_PRELOAD": "x",
        "OMP_NUM_THREADS": "2",
        "TORCH_LOGS": "x",
        "TORCHELASTIC_RUN_ID": "r",
        "RANK": "0",
        "PATH": "/bin",
    }
    assert set(sensitive(env)) == {"PYTHONHASHSEED", "LD_PRELOAD", "OMP_NUM_THREADS", "TORCH_LOGS"}


def test_one_interpreter_by_two_names(tmp_path):
    real = tmp_path / "real"
    real.touch()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "python").symlink_to(real)
    (tmp_path / "a" / "python3").symlink_to("python")
    assert same_python(str(tmp_path / "a/python"), str(tmp_path / "a/python3"))
    # Two virtual environments of one interpreter are two.
    assert not same_python(str(tmp_path / "a/python"), str(tmp_path / "b/python"))
