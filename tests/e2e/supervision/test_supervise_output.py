"""Output of ranks: all of it is in the files, whatever kills the supervisor, and all of it is sent."""

import os
import signal

import psutil
import pytest

from e2e.supervision.node import Node
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

PRINTS_THEN_SLEEPS = """
    import os, sys, time
    print("begin", flush=True)
    while not os.path.exists("go"): time.sleep(0.005)
    os.write(1, b"x" * 50_000)  # fits the pipe, so nothing waits for a reader
    open("wrote", "w").close()
    time.sleep(600)
"""
PRINTS_MUCH = """
    import sys
    for number in range(30_000): sys.stdout.write(f"{number:07d}" + "x" * 992 + "\\n")
"""
PRINTS_ITS_SECRETS = """
    import os
    for name in ("DB_PASS", "CKPT_KEY"): print(name, "is", os.environ[name], flush=True)
    os.write(1, os.environ["DB_PASS"][:5].encode())
    os.write(1, os.environ["DB_PASS"][5:].encode() + b"\\n")
    raise SystemExit("wrong: " + os.environ["DB_PASS"])
"""


def test_values_of_secrets_stand_in_no_report(tmp_path):
    own = tmp_path / "secrets.json"
    own.write_text('{"caller": {"DB_PASS": "correct-horse", "CKPT_KEY": "battery-staple"}}')
    names = {"DB_PASS": "caller", "CKPT_KEY": "caller"}
    withheld = {"own_secrets": names, "own_secrets_file": str(own)}
    with Node(tmp_path, PRINTS_ITS_SECRETS, **withheld) as node:
        node.run()
        failure = node.ended().failure
        node.release()
        assert node.shipped() == (
            b"DB_PASS is *************\nCKPT_KEY is **************\n*************\n"
        )
        assert "wrong: *************" in failure.traceback
        for report in node.plane.all_reports():
            assert "correct-horse" not in report.model_dump_json()
        assert b"correct-horse" in node.file("r00000.out").read_bytes()  # of the user alone


def test_a_killed_supervisor_leaves_no_output_in_its_pipes(tmp_path):
    with Node(tmp_path, PRINTS_THEN_SLEEPS) as node:
        node.run()
        node.wait_output("begin")
        reaper = node.reaper()
        os.kill(node.process.pid, signal.SIGSTOP)
        (node.code / "go").touch()
        wait_until((node.code / "wrote").exists)
        assert len(node.output()) < 50_000  # the supervisor reads nothing any more
        node.process.kill()
        node.process.wait()
        wait_until(lambda: not psutil.pid_exists(reaper), "the end of the reaper")
        assert node.output() == "begin\n" + "x" * 50_000


def test_much_output_at_the_end_arrives_before_the_supervisor_leaves(tmp_path):
    with Node(tmp_path, PRINTS_MUCH) as node:
        node.run()
        node.ended()
        node.release()
        assert node.shipped() == (node.file("r00000.out")).read_bytes()
