"""Planted secrets and real processes: command lines, environments, output, files, exports and a backup."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.platform.harness import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

OF_CALLER, OF_PROJECT, OF_JOB = (f"planted-{name}-8c1f" for name in ("caller", "project", "job"))
SECRETS = {"caller": OF_CALLER, "project": OF_PROJECT, "job": OF_JOB}
SCRIPT = """
import os, sys, time
seen = [os.environ[name] for name in ("DB_PASSWORD", "OF_PROJECT")]
print("output with", *seen, flush=True)
print("errors with", *seen, file=sys.stderr, flush=True)
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
raise RuntimeError("no login with " + " or ".join(seen))
"""
# Files of the home that hold secrets by design, each of mode 0600: keys, and what ranks wrote on the node.
KEPT = {"token", "server.json", "key", "secrets.key", "secrets.json"}
OUTPUT = (".out", ".err", ".error.json")


def processes(platform: Platform) -> Iterator[tuple[str, str]]:
    """The command line and environment of every process that this home has started."""
    for process in psutil.process_iter(["pid"]):
        folder = Path("/proc") / str(process.pid)
        try:
            line = (folder / "cmdline").read_bytes().decode("latin-1")
            variables = (folder / "environ").read_bytes().decode("latin-1")
        except OSError:
            continue
        if process.pid != os.getpid() and str(platform.home) in line + variables:
            yield f"command line of {line[:60]}", line
            yield f"environment of {line[:60]}", variables


def files(home: Path) -> Iterator[tuple[str, str]]:
    """Every file of the home and of the server's log, but those that hold secrets by design."""
    for path in home.rglob("*"):
        if not path.is_file():
            continue
        if path.name in KEPT or path.name.endswith(OUTPUT):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        else:
            yield f"file {path.relative_to(home)}", path.read_bytes().decode("latin-1")


def answers(platform: Platform, num: int) -> Iterator[tuple[str, str]]:
    """Every GET route of the served schema."""
    server = json.loads((platform.home / "server.json").read_text())
    headers = {"Authorization": f"Bearer {server['token']}"}
    with httpx.Client(base_url=server["url"], headers=headers, timeout=30) as http:
        for route, known in http.get("/openapi.json").json()["paths"].items():
            if "get" not in known or route.endswith("stream"):
                continue
            path = route.replace("{num}", str(num)).replace("{name}", "local")
            yield f"GET {route}", http.get(path.replace("{", "").replace("}", "")).text


def printed(platform: Platform, job: str) -> Iterator[tuple[str, str]]:
    """What verbs print that do not only show an answer of the API, and what a backup holds."""
    for words in (("logs", job), ("doctor", "--server", "--json")):
        done = platform.run(*words, check=False)
        if words[0] == "logs":
            assert "output with ****" in done.stdout and "errors with ****" in done.stdout
        yield f"phalanx {words[0]}", done.stdout + done.stderr
    if "PHALANX__DATABASE__URL" not in platform.env:
        platform.run("admin", "backup", platform.root / "backup")
        yield from files(platform.root / "backup")


def found(places: Iterator[tuple[str, str]]) -> set[str]:
    kept = list(places)
    assert kept
    return {
        f"{name} in {place}" for place, text in kept for name, one in SECRETS.items() if one in text
    }


@pytest.mark.extras
def test_a_running_job_and_its_failure_show_no_secret(platform: Platform, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(SCRIPT)
    with platform.client() as client:
        client.secrets.set("OF_PROJECT", OF_PROJECT)
    platform.env["DB_PASSWORD"] = OF_CALLER
    spec = {
        "run": [sys.executable, "job.py"],
        "workdir": str(code),
        "resources": {"slots_per_node": 2},
        "secrets": ["OF_PROJECT"],
        "env": {"DB_PASSWORD": OF_CALLER, "JOB_TOKEN": OF_JOB},
        "recovery": {"rank_crash": 0, "user_error": 0},
    }
    try:
        job = platform.submit(spec)
    finally:
        del platform.env["DB_PASSWORD"]
    ready = wait_until(lambda: list(platform.home.rglob("ready")), "the ranks")
    while_running = found(processes(platform))
    # The ranks have them in their memory alone: their environment is made after their start.
    assert while_running == set()
    assert any("supervise" in place for place, _ in processes(platform))
    assert found(files(platform.home)) == set()
    for path in ready:
        (path.parent / "go").touch()
    view = platform.wait_state(job, "failed")
    assert view.failure is not None and "no login with ****" in view.failure.message
    assert found(files(platform.home)) == set()
    assert found(answers(platform, view.num)) == set()
    assert found(printed(platform, job)) == set()
    assert found(iter([("the log", (platform.root / "up.log").read_text())])) == set()
    # The control: the raw output of the node has them, for its owner alone.
    raw = [path for path in platform.home.rglob("*") if path.name.endswith(OUTPUT)]
    assert any(OF_PROJECT in path.read_text() for path in raw if path.is_file())


def test_the_search_sees_a_command_line(platform: Platform) -> None:
    """The control of the search in the list of processes."""
    line = [sys.executable, "-c", "import time; time.sleep(60)", str(platform.home), OF_JOB]
    process = psutil.Popen(line)
    try:
        wait_until(lambda: found(processes(platform)), "the process")
    finally:
        process.kill()
        process.wait()
