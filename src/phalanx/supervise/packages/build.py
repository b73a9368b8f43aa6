"""The program that builds one environment: a child of the reaper, so that it ends with its supervisor.

Started as `python -I -S` with the standard library alone and the path of a request, JSON that says what is
wanted; the job's own variables are its environment, so that an installer finds its index, its proxy and
what a secret gives it. What it and the installer print is the job's output. Its verdict is a file of JSON
beside the request: `{"cause": null | "start_failed" | "user_error", "message", "tail"}`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.core.reasons import Cause
from phalanx.launch.files import write_file
from phalanx.supervise.packages import interpreter, requirements
from phalanx.supervise.packages.environments import EnvironmentStore
from phalanx.supervise.packages.plan import VERDICT

_TAIL_LINES = 40
_BASE = "_phalanx_base.pth"
# Variables that would make an installer write outside the environment.
_ELSEWHERE = re.compile(
    r"PIP_(USER|TARGET|PREFIX|ROOT)|UV_(TARGET|PREFIX|SYSTEM_PYTHON)|PYTHONHOME|VIRTUAL_ENV"
)
# Messages of installers about a network or a disk: another try may succeed.
_OUTSIDE = re.compile(
    r"connection (broken|refused|reset|aborted)|timed out|timeout|name resolution|dns error|"
    r"error sending request|failed to fetch|http error 5\d\d|5\d\d server error|"
    r"no space left|disk quota|ssl(error|: certificate)|network is unreachable",
    re.IGNORECASE,
)
_MISTAKE = re.compile(
    r"no matching distribution|could not find a version|no solution found|invalid requirement|"
    r"conflicting dependencies|resolutionimpossible|failed to parse|could not open requirements|"
    r"invalid wheel filename|is not a valid|no such (option|file or directory)|requires-python|"
    r"requires a different python|neither 'setup.py' nor 'pyproject.toml'|distribution not found",
    re.IGNORECASE,
)
_ERROR = re.compile(r"^(?:ERROR|error):\s*(.+)$")
_FURTHER = re.compile(r"^\s+(?:cause:|╰─▶|├─▶)\s*(.+)$")


class BuildFailed(Exception):
    """The environment could not be built; `cause` decides about a restart, `tail` is the last output."""

    def __init__(self, cause: Cause, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.cause, self.message, self.tail = cause, message, tail


def say(text: str) -> None:
    """Print one line into the job's output."""
    os.write(2, f"[packages] {text}\n".encode())


def build(request: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Build the environment unless it exists. Raises BuildFailed, and OSError for the disk."""
    store, digest = EnvironmentStore(Path(request["root"])), request["digest"]
    with store.building(
        digest, lambda: say("waiting: another job on this node builds the same environment")
    ):
        if store.target(digest) is not None:
            say(f"environment {digest} is ready from an earlier build")
            return
        folder = store.new(digest, secrets.token_hex(4))
        began = time.monotonic()
        say(f"building environment {digest}")
        try:
            _fill(folder, request, env)
            took_s = round(time.monotonic() - began, 2)
            lines = requirements.all_lines(Path(request["workdir"]), request["wanted"])
            store.commit(digest, folder, {"lines": lines, "took_s": took_s})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        say(f"environment {digest} is ready after {took_s:.1f} s")
    for gone in store.prune():
        say(f"environment {gone} was removed as the least recently used one")


def _fill(folder: Path, request: Mapping[str, Any], env: Mapping[str, str]) -> None:
    base: Mapping[str, Any] = request["base"]
    own = {name: value for name, value in env.items() if not _ELSEWHERE.fullmatch(name)}
    make = [request["python"], "-m", "venv"]
    make += [] if not base["pip"] else ["--without-pip"]
    make += ["--system-site-packages"] if base["system"] else []
    _run([*make, str(folder)], own, "/", "the virtual environment cannot be created")
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    if base["parents"]:
        rows = [f"import site; site.addsitedir({one!r})\n" for one in base["parents"]]
        (site / _BASE).write_text("".join(rows))
    words = installer(request, own, python)
    what = "the Python packages cannot be installed"
    alone = words[0] != str(python)
    if alone:
        reader = str(Path(interpreter.__file__).resolve())
        _run([str(python), reader, str(site)], own, "/", what)
    words += _asked(folder, request)
    say(" ".join([Path(words[0]).name, *words[1:]]))
    _run(words, own, request["workdir"], what)
    if alone:
        interpreter.remove_stand_ins(site)


def installer(request: Mapping[str, Any], env: Mapping[str, str], python: Path) -> list[str]:
    """The beginning of the installer's command line. Raises BuildFailed for an absent installer."""
    name = request["wanted"]["installer"]
    path = os.pathsep.join([str(Path(request["python"]).parent), env.get("PATH", "")])
    uv = None if name == "pip" else shutil.which("uv", path=path)
    if uv is not None:
        return [uv, "pip", "install", "--python", str(python), "--no-progress"]
    if name == "uv":
        raise BuildFailed(
            Cause.USER_ERROR, "`python.installer` is uv, but uv is not installed on this node"
        )
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    # -P: the work directory's own modules must not stand in for those of the installer.
    return [str(python), "-P", "-m", "pip", "install", *quiet]


def _asked(folder: Path, request: Mapping[str, Any]) -> list[str]:
    """Options and requirements in the syntax that pip and uv share."""
    want: Mapping[str, Any] = request["wanted"]
    words: list[str] = []
    if want.get("index_url") == "none":
        words += ["--no-index"]
    elif want.get("index_url"):
        words += ["--index-url", want["index_url"]]
    for one in want.get("extra_index_urls", ()):
        words += ["--extra-index-url", one]
    for one in want.get("find_links", ()):
        words += ["--find-links", one]
    torch = request["base"]["torch"]
    if torch and not requirements.names_torch(
        requirements.all_lines(Path(request["workdir"]), want)
    ):
        # A job that does not ask for torch keeps the installed one, whatever its packages require.
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={torch}\n")
        words += ["-c", str(constraints)]
    if want.get("requirements"):
        words += ["-r", want["requirements"]]
    return [*words, *want["packages"]]


def _run(words: Sequence[str], env: Mapping[str, str], cwd: str, what: str) -> None:
    """Run a command and pass its output on. Raises BuildFailed."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        child = subprocess.Popen(
            list(words),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        said = f"{what}: {words[0]}: {error.strerror}"
        raise BuildFailed(Cause.START_FAILED, said) from error
    assert child.stdout is not None
    for line in child.stdout:
        os.write(2, line)
        tail.append(line.decode("utf-8", "replace"))
    code = child.wait()
    if code != 0:
        text = "".join(tail)
        cause, why = judge(text)
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise BuildFailed(cause, f"{what}: {why or ended}", text)


def judge(text: str) -> tuple[Cause, str]:
    """The cause of an installer's failure, and its own message."""
    lines = text.splitlines()
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    why = ""
    # pip ends with a pointer to its manual where it cannot resolve: the line before says more.
    telling = [n for n in errors if "for help visit" not in lines[n]] or errors
    if telling:
        last = telling[-1]
        said = [_ERROR.sub(r"\1", lines[last])]
        for line in lines[last + 1 :]:
            if (further := _FURTHER.match(line)) is None:
                break
            said.append(further[1])
        why = ": ".join(one.strip().rstrip(":") for one in said)
    if _OUTSIDE.search(text):
        return Cause.START_FAILED, why
    return (Cause.USER_ERROR if _MISTAKE.search(text) else Cause.START_FAILED), why


def main(path: str) -> int:
    """Build the requested environment; returns the exit code, 0 for success."""
    verdict = Path(path).with_name(VERDICT)
    env = dict(os.environ)  # noqa: TID251 - a program's entry point
    body: dict[str, Any] = {"cause": None, "message": "", "tail": ""}
    try:
        build(json.loads(Path(path).read_bytes()), env)
    except BuildFailed as error:
        body = {"cause": error.cause.value, "message": error.message, "tail": error.tail}
    except requirements.InvalidRequirements as error:
        body = {"cause": Cause.USER_ERROR.value, "message": str(error), "tail": ""}
    except OSError as error:
        said = f"the environment cannot be built: {error}"
        body = {"cause": Cause.START_FAILED.value, "message": said, "tail": ""}
    if body["cause"] is not None:
        say(body["message"])
    write_file(verdict, json.dumps(body).encode())
    return 0 if body["cause"] is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
