"""The first process of a pod: the variables of its ranks, and the orphans that it becomes the parent of."""

import subprocess
import sys

import pytest

from phalanx.executors.kubernetes.pod import environment

pytestmark = pytest.mark.unit
# The supervisor of this test ends only when the orphan that it left is gone from the table of processes.
ORPHAN = """
import subprocess
from phalanx.executors.kubernetes.pod import wait_for
from phalanx.launch import linux
linux.become_subreaper()
script = 'pid=$(sh -c "true & echo \\\\$!"); while [ -e /proc/$pid ]; do :; done; exit 5'
raise SystemExit(wait_for(subprocess.Popen(["sh", "-c", script])))
"""


def test_orphans_are_reaped_while_the_supervisor_runs():
    done = subprocess.run([sys.executable, "-c", ORPHAN], timeout=60)
    assert done.returncode == 5


def test_ranks_have_the_variables_of_the_image_and_those_that_the_job_sets():
    image = {
        "PATH": "/opt/conda/bin",
        "LD_LIBRARY_PATH": "/usr/local/nvidia",
        "CUDA_HOME": "/cuda",
        "PHALANX_BOOTSTRAP": "/var/run/phalanx",
        "EPOCHS": "1",
    }
    given = {"PATH": "/server/bin", "USER": "server", "TMPDIR": "/job", "EPOCHS": "2"}
    assignment = {"env": given, "own_env": ["TMPDIR", "EPOCHS"]}
    assert environment(assignment, image) == {
        "PATH": "/opt/conda/bin",
        "LD_LIBRARY_PATH": "/usr/local/nvidia",
        "CUDA_HOME": "/cuda",
        "LANG": "C.UTF-8",
        "TMPDIR": "/job",
        "EPOCHS": "2",
    }
    assert environment({"env": given, "own_env": ["PATH"]}, image)["PATH"] == "/server/bin"
