"""Environment, output, orders, stops: what one supervisor does with ordinary commands."""

import json
import os
import signal
import socket

import pytest

from e2e.supervision.node import Node
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.training.ledger import Consumed, merge
from phalanx.schemas.wire.supervision import (
    CheckpointReport,
    ExitRecord,
    LedgerReport,
    MetricsReport,
    RanksEndedReport,
    RanksStartedReport,
    RestoredReport,
    WarningReport,
)
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

SHOW_ENV = """
    import json, os, sys
    print(json.dumps({"env": dict(os.environ), "argv": sys.argv, "path0": sys.path[0],
                      "cwd": os.getcwd(), "sid": os.getsid(0) == os.getpid()}))
"""


def test_the_environment_contract(tmp_path):
    with Node(tmp_path, SHOW_ENV, ranks=2) as node:
        port = node.port
        node.run(restarts=3)
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        for rank in (0, 1):
            found = json.loads(node.output(rank))
            env = found["env"]
            wanted = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "NODE_RANK": "0",
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "TORCHELASTIC_RESTART_COUNT": "3",
                "PHALANX_JOB": "j-7",
                "PHALANX_ATTEMPT": "2",
                "PHALANX_GENERATION": "0",
                "PHALANX_REFERENCE_WORLD": "2",
                "OMP_NUM_THREADS": "1",
                "PHALANX_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            }
            assert wanted.items() <= env.items()
            assert env["PHALANX_REPORT_FILE"].endswith(f"g000/r0000{rank}.report")
            assert env["TORCHELASTIC_ERROR_FILE"].endswith(f"g000/r0000{rank}.error.json")
            assert found["sid"]
            assert found["path0"] == found["cwd"] == str(node.code)


@pytest.mark.parametrize("kind", ["script", "module"])
def test_code_comes_from_the_work_directory_though_ranks_run_elsewhere(tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("print('edited')")
    command = ["python3", "train.py", "-x"] if kind == "script" else "python -m train -x"
    env = {"PATH": os.environ["PATH"]}
    with Node(tmp_path, SHOW_ENV, command=command, cwd=str(elsewhere), env=env) as node:
        node.run()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        found = json.loads(node.output())
        assert found["argv"] == [str(node.code / "train.py"), "-x"]
        assert found["path0"] == str(node.code)
        assert found["cwd"] == str(elsewhere)


def test_a_very_long_line_arrives_whole_and_nothing_interleaves(tmp_path):
    script = """
        import os, sys
        rank = os.environ["RANK"]
        sys.stdout.write(rank * 300_000 + "\\n")
        for number in range(2000):
            print(rank, number)
        sys.stderr.write("last words without an end")
    """
    with Node(tmp_path, script, ranks=2) as node:
        node.run()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        node.release()
        for rank in (0, 1):
            lines = f"{rank}" * 300_000 + "\n" + "".join(f"{rank} {n}\n" for n in range(2000))
            assert node.output(rank) == lines
            assert node.shipped(rank) == lines.encode()
            assert node.shipped(rank, "err") == b"last words without an end"


def test_a_full_disk_costs_output_and_nothing_else(tmp_path):
    script = """
        import sys
        for number in range(3000):
            print("x" * 100)
        sys.stderr.write("fine")
    """
    with Node(tmp_path, script) as node:
        node.file("").mkdir()
        node.file("r00000.out").symlink_to("/dev/full")
        node.run()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        warning = node.plane.wait_for(lambda: node.plane.reports(WarningReport))[0]
        assert "No space left on device" in warning.message
        assert node.output(stream="err") == "fine"


def test_a_traceback_names_the_cause(tmp_path):
    script = """
        import os, time
        if os.environ["RANK"] == "1":
            raise ValueError("no such\\nlayer")
        time.sleep(600)
    """
    with Node(tmp_path, script, ranks=2) as node:
        node.run()
        failure = node.failed()
        assert (failure.cause, failure.rank, failure.exception) == ("user_error", 1, "ValueError")
        assert failure.message == "rank 1: ValueError: no such"
        assert failure.traceback.startswith("Traceback (most recent call last):")
        assert node.ended().outcome is NodeOutcome.FAILED


def test_the_cause_is_found_behind_a_collateral_death(tmp_path):
    # Rank 0 sees its connection break and dies first; rank 1, which broke it, dies a moment later.
    script = """
        import os, sys, time
        if os.environ["RANK"] == "0":
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
        time.sleep(0.05)
        os.kill(os.getpid(), 11)
    """
    with Node(tmp_path, script, ranks=2) as node:
        node.run()
        failure = node.failed()
        assert (failure.rank, failure.signal, failure.collateral) == (1, signal.SIGSEGV, False)


def test_a_collateral_death_alone_is_reported_as_such(tmp_path):
    script = """
        import os, time
        if os.environ["RANK"] == "0":
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
        time.sleep(600)
    """
    with Node(tmp_path, script, ranks=2) as node:
        node.run()
        assert node.failed().collateral
        assert node.ended().outcome is NodeOutcome.FAILED


@pytest.mark.parametrize(
    ("command", "cause", "words"),
    [
        (["python", "missing.py"], "user_error", "missing.py"),
        (["no-such-program"], "user_error", "no-such-program"),
        ("exit 5", "rank_crash", "code 5"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(tmp_path, command, cause, words):
    with Node(tmp_path, command=command) as node:
        node.order(Action.RUN)
        failure = node.failed()
        assert failure.cause == cause
        assert words in failure.message
        assert "\n" not in failure.message
        assert node.ended().outcome is NodeOutcome.FAILED


SAVES = """
    import os, signal, sys, time
    def leave(*_):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    print("up", flush=True)
    while True:
        time.sleep(0.1)  # short: a signal just before it waits for its end
"""


def test_a_stop_that_every_rank_follows_is_no_failure(tmp_path):
    # torchrun ends with code 1 here, though every rank has saved.
    with Node(tmp_path, SAVES, ranks=2) as node:
        node.run()
        for rank in (0, 1):
            node.wait_output("up", rank)
        node.order(Action.STOP, grace_left_s=60.0)
        ended = node.ended()
        assert (ended.outcome, ended.failure) == (NodeOutcome.STOPPED, None)
        assert all("saved" in node.output(rank) for rank in (0, 1))


def test_a_stop_reaches_through_a_shell_and_waits_for_the_save(tmp_path):
    command = "trap 'echo shell' TERM; echo sh; python train.py; echo after"
    with Node(tmp_path, SAVES, command=command) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.STOP, grace_left_s=60.0)
        assert node.ended().outcome is NodeOutcome.STOPPED
        assert "saved" in node.output()


def test_a_data_worker_is_not_told_to_stop(tmp_path):
    script = """
        import os, signal, sys, time
        worker = os.fork()
        if worker == 0:
            time.sleep(600)
        def leave(*_):
            gone, status = os.waitpid(worker, os.WNOHANG)
            print("worker lives" if gone == 0 else f"worker died {status}", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        print("up", flush=True)
        time.sleep(600)
    """
    with Node(tmp_path, script) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.STOP, grace_left_s=60.0)
        assert node.ended().outcome is NodeOutcome.STOPPED
        assert "worker lives" in node.output()


def test_the_grace_ends(tmp_path):
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(600)
    """
    with Node(tmp_path, script) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.STOP, grace_left_s=600.0)
        node.order(Action.STOP, grace_left_s=0.2)
        ended = node.ended()
        assert (ended.outcome, ended.failure) == (NodeOutcome.STOPPED, None)
        assert node.marked() == []


def test_a_grace_never_becomes_longer_and_an_end_cuts_it(tmp_path):
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(600)
    """
    with Node(tmp_path, script, grace_s=600.0) as node:
        node.run()
        node.wait_output("up")
        node.process.terminate()
        node.order(Action.STOP, grace_left_s=500.0)
        node.order(Action.END)
        assert node.ended().outcome is NodeOutcome.FAILED
        assert node.process.wait(60) == 0


def test_a_drained_node_stops_its_ranks_and_leaves(tmp_path):
    with Node(tmp_path, SAVES) as node:
        node.run()
        node.wait_output("up")
        node.process.terminate()
        ended = node.ended()
        assert (ended.outcome, ended.failure) == (NodeOutcome.STOPPED, None)
        assert node.process.wait(60) == 0
        record = ExitRecord.model_validate_json((node.dir / "exit.json").read_bytes())
        assert record.released
        assert record.ended == ended


def test_orders_may_come_twice_and_late(tmp_path):
    with Node(tmp_path, SAVES) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.RUN, version="again")
        node.order(Action.END)
        first = node.ended()
        node.order(Action.RUN, version="late")
        node.order(Action.END, version="late")
        node.order(Action.STOP, version="late")
        node.run(generation=1)
        second = node.ended(0)
        assert second == first
        node.wait_output("up", generation=1)
        assert [r.generation for r in node.plane.reports(RanksStartedReport)] == [0, 1]
        assert [r.generation for r in node.plane.reports(RanksEndedReport)] == [0]


def test_an_end_before_the_start_is_answered(tmp_path):
    with Node(tmp_path, SAVES) as node:
        node.order(Action.END)
        assert node.ended().outcome is NodeOutcome.FAILED
        node.order(Action.RUN, version="late")
        node.run(generation=1)
        assert [r.generation for r in node.plane.reports(RanksStartedReport)] == [1]


def test_every_generation_has_a_port_of_its_own(tmp_path):
    script = """
        import os, socket, time
        server = socket.socket()
        server.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        server.listen()
        print("up", flush=True)
        time.sleep(600)
    """
    with Node(tmp_path, script) as node:
        ports = [node.port]
        for generation in range(3):
            pids = node.run(generation).pids
            node.wait_output("up", generation=generation)
            os.kill(pids[0], signal.SIGKILL)
            ports.append(node.ended(generation).port)
        assert len(set(ports)) == len(ports)
        with socket.socket() as probe:
            with pytest.raises(OSError, match="in use"):  # the supervisor holds it for its ranks
                probe.bind(("127.0.0.1", ports[-1]))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("127.0.0.1", ports[-1]))


def test_setup_runs_once_and_its_failure_is_told(tmp_path):
    setup = "echo preparing >> ../setups; test -e ../good || { echo no wheel; exit 3; }"
    with Node(tmp_path, "print('up')", setup=setup) as node:
        node.order(Action.RUN)
        failure = node.failed()
        assert failure.cause == "start_failed"
        assert "setup exited with code 3" in failure.message
        assert "no wheel" in failure.traceback
        assert node.ended().outcome is NodeOutcome.FAILED
        (tmp_path / "good").touch()
        for generation in (1, 2):
            node.run(generation)
            assert node.ended(generation).outcome is NodeOutcome.SUCCEEDED
        assert (tmp_path / "setups").read_text().count("preparing") == 2


REPORTS = """
    import mmap, os, time
    from phalanx.core.contract import records as reports
    rank = int(os.environ["RANK"])
    path = os.environ["PHALANX_REPORT_FILE"]
    records = [{"k": "restored", "t": 1, "path": "/c/step-1", "step": 1, "epoch": 0, "position": 4},
               {"k": "data", "t": 1, "num_samples": 100, "epoch": 0, "position": 4}]
    for step in (1, 2, 3):
        lo = step * 4 + rank * 2
        records += [{"k": "ledger", "t": 5, "step": step, "epoch": 0, "lo": lo, "hi": lo + 2},
                    {"k": "metric", "t": 5, "step": step, "values": {"loss": 1 / step, "bad": "nan"}},
                    {"k": "step", "t": 5, "step": step, "epoch": 0, "consumed": 0}]
    if rank == 0:
        records.append({"k": "checkpoint", "t": 9, "path": "/c/step-3", "step": 3, "epoch": 0,
                        "bytes": 10, "save_s": 0.5, "metrics": {"acc": 0.5}})
    records += [{"k": "nonsense"}, {"x": 1}, {"k": "done", "t": 9, "step": 3}]
    body = b"".join(reports.framed(one) for one in records)
    with open(path, "wb") as file:
        file.write(reports.header(os.getpid()) + body)
        file.seek(reports.LENGTH_OFFSET)
        file.write(reports.pack_length(len(body)))
"""


def test_what_ranks_report_reaches_the_control_plane(tmp_path):
    with Node(tmp_path, REPORTS, ranks=2) as node:
        node.run()
        ended = node.ended()
        assert (ended.outcome, ended.step) == (NodeOutcome.SUCCEEDED, 3)
        node.release()
        restored = node.plane.reports(RestoredReport)
        assert [(r.path, r.position) for r in restored] == [("/c/step-1", 4)]
        checkpoints = node.plane.reports(CheckpointReport)
        assert [(c.path, c.metrics) for c in checkpoints] == [("/c/step-3", {"acc": 0.5})]
        ledgers = node.plane.reports(LedgerReport)
        assert ledgers[-1].num_samples == 100 and all(one.added for one in ledgers)
        rows = merge(Consumed(r.epoch, r.lo, r.hi, r.times) for one in ledgers for r in one.rows)
        assert rows == (Consumed(0, 4, 16, 1),)
        points = [p for report in node.plane.reports(MetricsReport) for p in report.points]
        # In order within a rank; who of the ranks is heard first is open.
        told = sorted(((p.rank, p.step) for p in points), key=lambda point: point[0])
        assert told == [(r, s) for r in (0, 1) for s in (1, 2, 3)]
        assert [p.values for p in points if (p.rank, p.step) == (0, 2)] == [{"loss": 0.5}]
        said = [w.message for w in node.plane.reports(WarningReport)]
        assert any("bad" in one and "not finite" in one for one in said)


def test_a_stop_after_the_last_step_is_success(tmp_path):
    script = REPORTS + (
        "    import signal, sys\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with Node(tmp_path, script) as node:
        node.run()
        node.wait_output("up")
        node.order(Action.STOP, grace_left_s=60.0)
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        wait_until(lambda: not node.marked())
