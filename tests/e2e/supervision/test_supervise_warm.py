"""Warm ranks: forked, and yet what a fresh interpreter would be.

Most tests put an empty `torch` in front of the real one: what they test is the fork, not the import.
"""

import json
import os
import re
import signal

import pytest

from e2e.supervision.node import Node
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from phalanx.schemas.wire.supervision import WarningReport

pytestmark = pytest.mark.e2e


@pytest.fixture
def light(tmp_path):
    """An environment in which `import torch` costs nothing."""
    folder = tmp_path / "light"
    for name in ("torch", "torch/_dynamo", "torch/distributed", "torch/nn", "torch/nn/parallel"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    return {"PYTHONPATH": str(folder)}


FACTS = """
    '''A docstring.'''
    import atexit, json, os, signal, sys, threading
    names = {k: repr(v).replace(hex(id(v)), "") for k, v in globals().items()
             if k.startswith("__") and k not in ("__builtins__", "__loader__", "__annotations__")}
    facts = {
        "names": names, "loader": type(__loader__).__name__, "builtins": type(__builtins__).__name__,
        "doc": __doc__, "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(),
        "orig": sys.orig_argv, "flags": repr(sys.flags),
        "signals": {s.name: repr(signal.getsignal(s)).split(" at 0x")[0] for s in signal.Signals},
        "mask": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "fds": sorted(int(f) for f in os.listdir("/proc/self/fd"))[:3],
        "num_fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(), "main": sys.modules["__main__"].__dict__ is globals(),
        "buffering": [sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering],
        "leader": os.getsid(0) == os.getpid() == os.getpgid(0), "stdin": sys.stdin.read(),
        "env": {k: v for k, v in os.environ.items() if k not in ("PHALANX_SUPERVISOR", "MARK", "PYTHONPATH")
                and not k.startswith("PHALANX_TEST") and str(k) not in ("HOME",) and "n0" not in v
                and "checkpoints" not in v
                and not k.endswith(("MASTER_PORT", "ACCEPT_PORTS", "_URL", "_TOKEN"))},
    }
    print(json.dumps(facts))
    atexit.register(print, "goodbye")
    sys.exit("words")
"""


def facts(folder, light, *, warm, command):
    folder.mkdir()
    with Node(folder, FACTS, warm=warm, env=light, command=command) as node:
        assert node.run().warm is warm
        assert node.ended().failure.exit_code == 1
        lines = node.output().splitlines()
        assert lines[1] == "goodbye"
        assert node.output(stream="err") == "words\n"
        return json.loads(re.sub("0x[0-9a-f]+", "0x", lines[0].replace(str(folder), "")))


@pytest.mark.parametrize(
    "command",
    [["python", "train.py", "--lr", "1"], ["python", "-u", "-m", "train", "x"]],
    ids=["script", "module"],
)
def test_a_warm_rank_looks_like_a_fresh_process(tmp_path, light, command):
    warm = facts(tmp_path / "warm", light, warm=True, command=command)
    cold = facts(tmp_path / "cold", light, warm=False, command=command)
    if command[1] == "-u":
        # A cold module start needs -P and PYTHONPATH to find modules away from its folder.
        for found in (warm, cold):
            found["path"] = [p for p in found["path"] if p not in ("", "/code")]
            found.pop("flags")
    # The file of its stacks, and the pipe through which its collectives are asked for.
    warm["num_fds"] -= 2
    assert warm == cold


def test_randomness_is_not_shared(tmp_path, light):
    script = """
        import random, uuid, tempfile, os
        print(random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()))
    """
    with Node(tmp_path, script, ranks=3, warm=True, env=light, imports=["numpy.random"]) as node:
        assert node.run().warm
        node.ended()
        said = [word for rank in range(3) for word in node.output(rank).split()]
        assert len(set(said)) == 9


def test_classes_of_main_pickle_and_reach_workers_of_every_kind(tmp_path, light):
    script = """
        import multiprocessing, os, pickle
        class Item:
            def __init__(self, value): self.value = value
        def double(item): return Item(item.value * 2)
        if __name__ == "__main__":
            assert type(pickle.loads(pickle.dumps(Item(1)))) is Item
            method = ["fork", "spawn", "forkserver"][int(os.environ["PHALANX_GENERATION"])]
            with multiprocessing.get_context(method).Pool(2) as pool:
                print(method, sum(one.value for one in pool.map(double, map(Item, range(5)))))
    """
    with Node(tmp_path, script, warm=True, env=light) as node:
        for generation, method in enumerate(["fork", "spawn", "forkserver"]):
            assert node.run(generation).warm
            assert node.ended(generation).outcome is NodeOutcome.SUCCEEDED
            assert node.output(generation=generation) == f"{method} 20\n"
        assert len(node.marked()) == 1  # the warm process: no fork server is left


def test_a_module_of_a_package_is_found_by_its_workers(tmp_path, light):
    command = ["python", "-m", "lib.job"]
    with Node(tmp_path, command=command, warm=True, env=light, cwd=str(tmp_path)) as node:
        (node.code / "lib").mkdir()
        (node.code / "lib" / "__init__.py").touch()
        (node.code / "lib" / "near.py").write_text("NEAR = 3\n")
        (node.code / "lib" / "job.py").write_text(
            "import multiprocessing\n"
            "from lib.near import NEAR\n"
            "def times(x): return x * NEAR\n"
            "if __name__ == '__main__':\n"
            "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
            "        print(__spec__.name, __package__, pool.map(times, [2]))\n"
        )
        assert node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert node.output() == "lib.job lib [6]\n"


def test_an_error_is_left_as_torchelastic_wants_it(tmp_path, light):
    script = """
        def inner():
            raise KeyError("lr")
        inner()
    """
    with Node(tmp_path, script, warm=True, env=light) as node:
        assert node.run().warm
        failure = node.failed()
        assert (failure.exception, failure.message) == ("KeyError", "rank 0: KeyError: 'lr'")
        assert "warm_process" not in failure.traceback
        assert "_main_module" not in node.output(stream="err")
        assert failure.traceback == node.output(stream="err")
        left = json.loads(node.file("r00000.error.json").read_text())["message"]
        assert left["message"] == "KeyError: 'lr'"
        assert set(left["extraInfo"]) == {"py_callstack", "timestamp", "exc_type"}


@pytest.mark.parametrize(
    ("source", "exception"), [("def broken(:\n", "SyntaxError"), (None, "FileNotFoundError")]
)
def test_a_script_that_cannot_begin_is_the_users_mistake(tmp_path, light, source, exception):
    with Node(tmp_path, warm=True, env=light) as node:
        script = node.code / "train.py"
        script.unlink() if source is None else script.write_text(source)
        assert node.run().warm
        failure = node.failed()
        assert (failure.exception, failure.cause) == (exception, "user_error")
        assert "train.py" in failure.message + failure.traceback


@pytest.mark.parametrize("why", ["thread", "hash seed", "disabled", "shell", "no phalanx"])
def test_cold_where_a_fork_would_not_be_the_same(tmp_path, light, why):
    command, warm, imports = None, True, []
    if why == "thread":
        (tmp_path / "light" / "threaded.py").write_text(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        )
        imports = ["threaded"]
    elif why == "hash seed":
        command = "PYTHONHASHSEED=5 python train.py"
    elif why == "disabled":
        warm = False
    elif why == "shell":
        command = "python train.py && true"
    elif why == "no phalanx":
        (tmp_path / "light" / "phalanx").mkdir()
        (tmp_path / "light" / "phalanx" / "__init__.py").touch()
    script = "import os; print(os.environ.get('PYTHONHASHSEED'))"
    more = {"warm": warm, "imports": imports, "env": light, "command": command}
    with Node(tmp_path, script, **more) as node:
        assert not node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert node.output() == ("5\n" if why == "hash seed" else "None\n")
        if why == "thread":
            said = [one.message for one in node.plane.reports(WarningReport)]
            assert any("2 threads" in one for one in said)


def test_an_import_that_fails_is_told_and_costs_nothing(tmp_path, light):
    with Node(tmp_path, "print(1)", warm=True, env=light, imports=["no_such_module"]) as node:
        assert node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        said = [one.message for one in node.plane.reports(WarningReport)]
        assert any("no_such_module" in one for one in said)


def test_the_warm_process_sees_what_the_set_up_installed(tmp_path, light):
    setup = "echo NEW = 1 > ../light/fresh.py"
    script = "import fresh; print(fresh.NEW)"
    with Node(tmp_path, script, warm=True, env=light, imports=["fresh"], setup=setup) as node:
        assert node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert node.output() == "1\n"
        assert node.plane.reports(WarningReport) == []


SLEEPS = """
    import os, time
    if os.fork() == 0:
        time.sleep(600)
    print("up", flush=True)
    time.sleep(600)
"""


def test_the_death_of_the_warm_process_ends_the_generation(tmp_path, light):
    with Node(tmp_path, SLEEPS, ranks=2, warm=True, env=light) as node:
        assert node.run().warm
        for rank in (0, 1):
            node.wait_output("up", rank)
        os.kill(node.warm_process(), signal.SIGKILL)
        failure = node.failed()
        assert "the warm process died" in failure.message
        assert node.ended().outcome is NodeOutcome.FAILED
        assert node.marked() == []
        assert not node.run(generation=1).warm


@pytest.mark.parametrize("victim", ["rank", "supervisor", "reaper"])
def test_workers_of_warm_ranks_die_with_whatever_dies(tmp_path, light, victim):
    with Node(tmp_path, SLEEPS, ranks=2, warm=True, env=light) as node:
        pids = node.run().pids
        for rank in (0, 1):
            node.wait_output("up", rank)
        assert len(node.marked()) == 5
        pid = {"rank": pids[0], "supervisor": node.process.pid, "reaper": node.reaper()}[victim]
        os.kill(pid, signal.SIGKILL)
        if victim == "supervisor":
            node.wait_gone()
            return
        node.ended()
        assert len(node.marked()) == (1 if victim == "rank" else 0)


def test_stop_before_the_warm_process_is_ready(tmp_path, light):
    (tmp_path / "light" / "slow.py").write_text("import time\ntime.sleep(1)\n")
    with Node(tmp_path, SLEEPS, warm=True, env=light, imports=["slow"]) as node:
        node.order(Action.RUN)
        node.order(Action.STOP, grace_left_s=30.0)
        assert node.ended().outcome is NodeOutcome.STOPPED
        assert len(node.marked()) == 1


TRAIN = """
    import os, sys, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Dataset
    METHODS = {"0": None, "1": "fork", "2": "spawn", "3": "forkserver"}
    class Numbers(Dataset):
        def __len__(self): return 12
        def __getitem__(self, index): return torch.full((4,), float(index))
    if __name__ == "__main__":
        method = METHODS[os.environ["PHALANX_GENERATION"]]
        dist.init_process_group("gloo")
        model = DDP(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2 if method else 0,
                            multiprocessing_context=method)
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
        print("trained", method, flush=True)
        dist.barrier()  # the first to leave ends the others, who have to have said it by then
        dist.destroy_process_group()
        if method is None:
            os.kill(os.getpid(), 9)
"""


@pytest.mark.extras
def test_an_unmodified_torch_script_recovers_with_data_workers_of_every_kind(tmp_path):
    # Under torchrun the second rendezvous hangs on gloo; and a warm parent that had run a tensor
    # operation would hang its children at the first one.
    with Node(tmp_path, TRAIN, ranks=2, warm=True) as node:
        for generation, method in enumerate([None, "fork", "spawn", "forkserver"]):
            assert node.run(generation).warm
            ended = node.ended(generation)
            assert f"trained {method}\n" in node.output(0, generation=generation)
            wanted = NodeOutcome.SUCCEEDED if method else NodeOutcome.FAILED
            assert ended.outcome is wanted
        assert len(node.marked()) == 1
