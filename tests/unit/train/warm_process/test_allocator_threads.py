"""The warm process stays without threads, whatever the modules load that it imports."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import os
from phalanx.launch import linux
from phalanx.train.warm_process import fork_server
fork_server.preload(["pyarrow"])
fork_server.settle_threads()
print(linux.num_threads(), os.environ.get("JE_ARROW_MALLOC_CONF"))
"""


def test_arrow_starts_no_thread_that_stays() -> None:
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["1", "None"]
