"""`phalanx up --grpc-port` as a user starts it: the example submits a job, and its rank streams metrics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.platform.harness import Platform

pytest.importorskip("grpc")

pytestmark = pytest.mark.e2e
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "grpc" / "submit.py"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = int(held.getsockname()[1])
    one = Platform(tmp_path)
    one.slots = ("--slots", "1", "--keep-warm", "0", "--grpc-port", str(port))
    one.up()
    yield one
    one.down()


def test_the_example_submits_a_job_that_streams_its_metrics(platform: Platform) -> None:
    port = platform.slots[-1]
    assert f"gRPC: 127.0.0.1:{port}" in (platform.root / "up.log").read_text()
    token = (platform.home / "token").read_text().strip()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), f"127.0.0.1:{port}"],
        env={**os.environ, "PHALANX_TOKEN": token},
        cwd=platform.root,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("submitted j-1: http://127.0.0.1:")
    assert lines[1:3] == ["j-1 submitted: queued", "j-1 attempt_placed: starting"]
    assert lines[-1] == "succeeded"
    with platform.client() as client:
        (series,) = client.metrics(1).series
    assert (series.name, series.steps[0], series.steps[-1]) == ("loss", 0, 199)
    assert "loss 0.000000" in platform.run("logs", "j-1").stdout
