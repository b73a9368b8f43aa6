"""The end of a forked rank keeps what a program's end keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import atexit, os, sys, threading
from phalanx.train.warm_process import leaving
before = frozenset(sys.modules)
"""


def ending(script: str, folder: Path, code: str = "None") -> tuple[int, str, str]:
    """Exit code, output and errors of a process that runs a script and leaves as a rank does."""
    text = f"{HEAD}{script}\nleaving.leave({code}, before)\n"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_what_is_still_open_is_written(tmp_path: Path):
    script = """
import gzip
one = open("plain.txt", "w"); one.write("kept")
keep = {"inner": gzip.open("packed.gz", "wt")}; keep["inner"].write("kept")
sys.plain = open("held.txt", "wb"); sys.plain.write(b"kept")  # a module of before holds it
print("said", end="")
"""
    assert ending(script, tmp_path) == (0, "said", "")
    import gzip

    assert (tmp_path / "plain.txt").read_text() == "kept"
    assert (tmp_path / "held.txt").read_text() == "kept"
    with gzip.open(tmp_path / "packed.gz", "rt") as packed:
        assert packed.read() == "kept"


def test_threads_are_waited_for_and_exit_functions_run(tmp_path: Path):
    script = """
import time
def later():
    while not os.path.exists("go"):
        time.sleep(0.001)
    print("thread")
threading.Thread(target=later).start()
atexit.register(print, "exit")
threading.Timer(0.05, lambda: open("go", "w").close()).start()
"""
    assert ending(script, tmp_path)[1] == "thread\nexit\n"


def test_objects_of_the_script_end(tmp_path: Path):
    script = """
class Session:
    def __del__(self, write=os.write):
        write(1, b"closed")
session = Session()
"""
    assert ending(script, tmp_path)[1] == "closed"


def test_a_class_that_is_its_own_class_does_not_fail_the_end(tmp_path: Path):
    """As in h11, which httpx imports with its first connection."""
    script = """
class Sentinel(type):
    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made.__class__ = made
        return made
class CLIENT(Sentinel, metaclass=Sentinel):
    pass
print("said", end="")
"""
    assert ending(script, tmp_path) == (0, "said", "")


def test_a_weak_proxy_of_what_is_gone_does_not_fail_the_end(tmp_path: Path):
    """As torch.compile leaves some."""
    script = """
import weakref
class Model:
    pass
model = Model()
sys.kept = [weakref.proxy(model)]
print("said", end="")
"""
    assert ending(script, tmp_path) == (0, "said", "")


@pytest.mark.parametrize(
    ("code", "number", "said"),
    [("3", 3, ""), ("None", 0, ""), ("'why'", 1, "why\n"), ("-1", 255, ""), ("True", 1, "")],
)
def test_the_code_is_that_of_the_interpreter(tmp_path: Path, code: str, number: int, said: str):
    plain = subprocess.run(
        [sys.executable, "-c", f"raise SystemExit({code})"], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (plain.returncode, plain.stderr) == (number, said)
    assert ending("", tmp_path, code) == (number, "", said)


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path):
    assert ending("sys.stdout = open('/dev/full', 'w'); print('lost')", tmp_path)[0] == 120
