"""A control plane with TLS: a job from its submission to its end, and the places without its secrets."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.platform.harness import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

OWN = "planted-in-the-environment-1f83d9"  # a variable of the job, secret by its name
STORED = "planted-by-secrets-set-5be0cd"
PLAIN = "planted-as-no-secret-a54ff5"  # the control: what is no secret is found wherever secrets are not

SCRIPT = """
import base64, os, sys, time
names = ("API_TOKEN", "DEPLOY_WORD", "PLAIN_WORD")
for name in names:
    value = os.environ[name]
    print(name, value, base64.b64encode(value.encode()).decode(), flush=True)
    print("to stderr", value, file=sys.stderr, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
raise SystemExit("no access with " + " ".join(os.environ[name] for name in names))
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    one = Platform(tmp_path_factory.mktemp("tls"))
    one.slots = ("--slots", "1", "--keep-warm", "0", "--tls", "generate")
    one.up()
    # Without the Unix socket, supervisors and clients use the port alone.
    (one.home / "server.sock").unlink()
    word = one.root / "word"
    word.write_text(STORED)
    one.run("secrets", "set", "DEPLOY_WORD", "--file", word)
    work = one.root / "work"
    work.mkdir()
    (work / "leak.py").write_text(SCRIPT)
    yield one
    one.down()


def test_job_runs_over_tls_with_a_secret_and_a_client_elsewhere(platform: Platform) -> None:
    server = json.loads((platform.home / "server.json").read_text())
    assert server["url"].startswith("https://")
    run = f"{sys.executable} -c \"import os; print(len(os.environ['DEPLOY_WORD']), 'letters')\""
    spec = {"name": "tls", "framework": "none", "run": run, "secrets": ["DEPLOY_WORD"]}
    job = platform.submit({**spec, "workdir": str(platform.root / "work")})
    platform.wait_state(job, "succeeded")

    elsewhere = ["--url", server["url"], "--token", server["token"]]
    refused = platform.run(*elsewhere, "logs", job, check=False)
    assert refused.returncode != 0
    assert "is not from the accepted authority" in refused.stderr
    pinned = ["--ca-file", platform.home / "tls" / "ca.pem"]
    assert f"{len(STORED)} letters" in platform.run(*elsewhere, *pinned, "logs", job).stdout


@pytest.mark.extras
def test_planted_secrets_are_in_no_database_event_answer_backup_or_list_of_processes(
    platform: Platform,
) -> None:
    go = platform.root / "go"
    spec = {
        "name": "leak",
        "framework": "none",
        "run": [sys.executable, "leak.py", str(go)],
        "env": {"API_TOKEN": OWN, "PLAIN_WORD": PLAIN},
        "secrets": ["DEPLOY_WORD"],
        "workdir": str(platform.root / "work"),
        "recovery": {"user_error": 0, "rank_crash": 0},
    }
    job = platform.submit(spec)
    platform.wait_state(job, "running")
    wait_until(lambda: PLAIN in platform.output(job), "its output")
    processes = lists_of_processes(platform)
    go.touch()
    wait_until(lambda: platform.show(job).is_terminal, "its end")
    num = int(job.removeprefix("j-"))

    backup = platform.root / "backup"
    platform.run("admin", "backup", backup)
    with platform.client() as client:
        answers = [client.events(num).model_dump_json(), client.job(num).model_dump_json()]
        answers.append(str(client.logs(num)))
    for verb in (["show", job], ["logs", job], ["audit"], ["secrets", "ls"], ["why", job]):
        done = platform.run(*verb, check=False)
        answers.append(done.stdout + done.stderr)
    stored = dumped(platform.home)
    bundle = b"".join(file.read_bytes() for file in backup.rglob("*") if file.is_file())

    places = {
        "database": stored,
        "answers": "\n".join(answers).encode(),
        "backup": bundle,
        "processes": processes,
    }
    assert {name: found(text, OWN) + found(text, STORED) for name, text in places.items()} == {
        name: [] for name in places
    }
    # The search finds what is there: the control is in output, in the failure and in the spec.
    for name in ("database", "answers", "backup"):
        assert found(places[name], PLAIN)


def dumped(home: Path) -> bytes:
    """The database as statements, and its files with what was deleted in them."""
    file = home / "db" / "phalanx.sqlite"
    with sqlite3.connect(file) as conn:
        text = "\n".join(conn.iterdump()).encode()
    return text + b"".join(one.read_bytes() for one in file.parent.iterdir() if one.is_file())


def lists_of_processes(platform: Platform) -> bytes:
    """What the list of processes shows to everybody, and the environment of the control plane."""
    shown = Path(f"/proc/{platform.server_pid()}/environ").read_bytes()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                shown += (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
    return shown


def found(text: bytes, value: str) -> list[str]:
    """The forms of a value that a text has."""
    wanted = value.encode()
    forms = {"plain": wanted, "hexadecimal": wanted.hex().encode()}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + wanted).decode()
        forms[f"base64 {shift}"] = encoded[4 if shift else 0 : -4].encode()
    return [name for name, form in forms.items() if form in text]
