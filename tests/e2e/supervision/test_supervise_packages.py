"""A job's own packages under a real supervisor: built once, found by set-up and ranks, cold and warm."""

import json
import signal
import sys
from pathlib import Path

import pytest

from e2e.supervision.node import Node
from phalanx.core.contract.job import PythonRequirements
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from phalanx.schemas.wire.assignments import PythonPackages
from phalanx.supervise.packages.environments import EnvironmentStore
from support.waiting import wait_until
from tinywheel import make_wheel

pytestmark = pytest.mark.e2e
SCRIPT = """
    import json, os, shutil, sys
    import phalanx.train, tinypkg
    print(json.dumps({"version": tinypkg.VERSION, "prefix": sys.prefix, "python": sys.executable,
                      "virtual_env": os.environ["VIRTUAL_ENV"], "torch": "torch" in sys.modules,
                      "which": shutil.which("python")}))
"""


def packages(tmp_path, *wanted, **fields):
    make_wheel(tmp_path / "wheels", "tinypkg")
    fields = {
        "installer": "pip",
        "index_url": "none",
        "find_links": (str(tmp_path / "wheels"),),
    } | fields
    return PythonPackages(
        root=str(tmp_path / "python"), wanted=PythonRequirements(packages=tuple(wanted), **fields)
    )


def said(node, generation=0):
    return json.loads(node.output(generation=generation))


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


def environment(tmp_path):
    (link,) = (one for one in (tmp_path / "python").iterdir() if one.is_symlink())
    return link


@pytest.mark.extras
def test_ranks_and_set_up_find_the_package(tmp_path):
    python = packages(tmp_path, "tinypkg==1.0")
    setup = "python -c 'import tinypkg' && command -v python > ../which"
    with Node(tmp_path, SCRIPT, command=["python", "train.py"], python=python, setup=setup) as node:
        node.run()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        found, link = said(node), environment(tmp_path)
        assert (found["version"], found["virtual_env"]) == ("1.0", str(link))
        assert found["prefix"] == str(link)
        assert found["which"] == str(link / "bin" / "python")
        assert (tmp_path / "which").read_text().strip() == found["which"]
        # Progress stands in the job's output.
        wait_until(lambda: b"is ready after" in node.shipped(stream="err"))
        # The next generation needs no build, and its output is the ranks' alone.
        node.run(1)
        assert node.ended(1).outcome is NodeOutcome.SUCCEEDED
        assert "packages" not in node.output(stream="err", generation=1)
        node.release()
    # Nor does the next attempt, whose warm process is the environment's interpreter from the start.
    again = [sys.executable, "train.py"]
    with Node(folder(tmp_path, "next"), SCRIPT, command=again, python=python, warm=True) as node:
        assert node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert (said(node)["prefix"], said(node)["torch"]) == (str(link), True)
        assert "packages" not in node.output(stream="err")
        node.release()


@pytest.mark.proof
def test_the_warm_process_starts_when_the_environment_is_built(tmp_path):
    python = packages(tmp_path, "tinypkg")
    with Node(tmp_path, SCRIPT, command=["python", "train.py"], python=python, warm=True) as node:
        assert node.run().warm
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert (said(node)["prefix"], said(node)["torch"]) == (str(environment(tmp_path)), True)


def test_a_requirement_that_does_not_exist_is_the_users_mistake(tmp_path):
    python = packages(tmp_path, "tinypkg==2.0")
    with Node(tmp_path, SCRIPT, command=["python", "train.py"], python=python) as node:
        node.order(Action.RUN)
        failure = node.failed()
        assert failure.cause == "user_error"
        assert failure.message.endswith("No matching distribution found for tinypkg==2.0")
        assert "from versions: 1.0" in failure.traceback
        assert node.ended().outcome is NodeOutcome.FAILED
        assert [one for one in (tmp_path / "python").iterdir() if one.is_dir()] == []


def slow_uv(tmp_path):
    """An installer that writes half a package and then waits, once; the second time it is quick."""
    bin_dir = folder(tmp_path, "bin")
    (bin_dir / "uv").write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys, time\n"
        "python = pathlib.Path(sys.argv[sys.argv.index('--python') + 1])\n"
        "site = next((python.parent.parent / 'lib').glob('python*/site-packages'))\n"
        f"mark = pathlib.Path({str(tmp_path / 'began')!r})\n"
        "first = not mark.exists()\n"
        "(site / 'tinypkg.py').write_text('VERSION = ' + ('' if first else repr(\"1.0\")))\n"
        "mark.write_text(str(site))\n"
        "time.sleep(1000 if first else 0)\n"
    )
    (bin_dir / "uv").chmod(0o700)
    return {"PATH": f"{bin_dir}:{Path(sys.executable).parent}:/usr/bin:/bin"}


def test_stopping_and_killing_in_mid_build_leaves_nothing_that_is_used(tmp_path):
    python = packages(tmp_path, "tinypkg", installer="uv")
    fields = {"command": ["python", "train.py"], "python": python, "env": slow_uv(tmp_path)}
    with Node(tmp_path, SCRIPT, **fields) as node:
        node.order(Action.RUN)
        wait_until((tmp_path / "began").exists)
        # SIGKILL to the supervisor: the builder and its installer go with it.
        node.process.send_signal(signal.SIGKILL)
        node.wait_gone()
        half = Path((tmp_path / "began").read_text())
        assert (half / "tinypkg.py").exists()
        store = EnvironmentStore(Path(python.root))
        assert [one for one in store.root.iterdir() if one.is_symlink()] == []
    (tmp_path / "began").unlink()
    with Node(folder(tmp_path, "stop"), SCRIPT, **fields) as node:
        node.order(Action.RUN)
        wait_until((tmp_path / "began").exists)
        assert not half.exists()  # whoever builds next clears the debris away
        # A stop need not wait for the build, nor for the grace.
        node.order(Action.STOP, grace_left_s=1000.0)
        assert node.ended().outcome is NodeOutcome.STOPPED
        node.release()
    with Node(folder(tmp_path, "again"), SCRIPT, **fields) as node:
        node.run()
        assert node.ended().outcome is NodeOutcome.SUCCEEDED
        assert said(node)["version"] == "1.0"
        node.release()
