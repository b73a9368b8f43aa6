"""The sampler process: equal answers, deaths, hangs, nonsense; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from phalanx.core.search.sampling import SampleRequest
from phalanx.search.methods import suggest
from phalanx.search.worker import SamplerWorker
from phalanx.testing.search_methods import PLAIN, trials
from support.waiting import wait_until

pytestmark = pytest.mark.integration
REQUEST = SampleRequest(PLAIN, "bayesian", {}, 1, 30, trials(PLAIN, 30, 5))


@pytest.fixture
def worker():
    made = SamplerWorker()
    yield made
    made.close()


def program(tmp_path, text):
    path = tmp_path / "child.py"
    path.write_text(text)
    return SamplerWorker((sys.executable, str(path)))


def test_a_killed_process_changes_no_suggestion(worker):
    first = worker.suggest(REQUEST)
    assert first == suggest(REQUEST)
    assert first.sampler == "bayesian"
    old = worker.pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: worker._process.poll() is not None)
    assert worker.suggest(REQUEST) == first
    assert worker.pid != old


def test_a_death_in_mid_answer_gives_a_random_suggestion_with_a_reason(tmp_path):
    worker = program(
        tmp_path,
        "import os, signal, sys\nsys.stdin.readline()\nprint('{\"sugg', end='', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    made = worker.suggest(REQUEST)
    assert (made.sampler, made.reason) == ("random", "the sampler process died")
    assert not PLAIN.violations(made.params)
    assert worker.suggest(REQUEST) == made
    assert worker.pid is None


def test_three_deaths_during_one_request_change_no_suggestion(tmp_path):
    deaths = tmp_path / "deaths"
    worker = program(
        tmp_path,
        "import os, runpy, signal\nfrom pathlib import Path\n"
        f"deaths = Path({str(deaths)!r})\n"
        "if not deaths.exists() or len(deaths.read_bytes()) < 3:\n"
        "    deaths.open('ab').write(b'x')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "runpy.run_module('phalanx.search', run_name='__main__')\n",
    )
    assert worker.suggest(REQUEST) == suggest(REQUEST)
    assert len(deaths.read_bytes()) == 3
    worker.close()


def test_a_process_that_hangs_is_killed(tmp_path):
    worker = program(tmp_path, "import time\ntime.sleep(600)\n")
    made = worker.suggest(REQUEST, timeout_s=0.5)
    assert (made.sampler, made.reason) == ("random", "the sampler process took too long")
    assert worker.pid is None


@pytest.mark.parametrize("answer", ["nonsense", "[1]", '{"error": "no"}'])
def test_an_answer_that_is_none(tmp_path, answer):
    worker = program(tmp_path, f"import sys\nfor _ in sys.stdin: print({answer!r}, flush=True)\n")
    made = worker.suggest(REQUEST)
    assert made.sampler == "random"
    assert made.reason
    worker.close()


def test_the_process_ends_with_its_input(worker):
    worker.suggest(REQUEST)
    process = worker._process
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def test_methods_without_a_model_need_no_process(worker):
    assert worker.suggest(SampleRequest(PLAIN, "random")).sampler == "random"
    assert worker.pid is None


def test_the_package_alone_loads_no_model():
    code = "import sys, phalanx.search; sys.exit('numpy' in sys.modules or 'optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
