"""Small decisions of the command line: where options may stand, exit codes, guesses, what is shown."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.cli import exits
from phalanx.cli.__main__ import hoist
from phalanx.cli.__main__ import main as program
from phalanx.cli.client import embedded
from phalanx.cli.client.checkup import examine
from phalanx.cli.client.session import describe, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import duration
from phalanx.cli.terminal.screen import StepEstimate
from phalanx.errors import Conflict, NotFound, Problem, ServerError, SpecInvalid, UserError
from phalanx.kit.clock import SystemClock
from phalanx.launch.files import folder_identity
from phalanx.launch.identity import this_process
from phalanx.schemas.home import HomeLayout
from phalanx.standalone import home as homes
from phalanx.standalone.control_plane import bind, default_slots

pytestmark = pytest.mark.unit


def code_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as left:
        program(argv)
    return left.value.code


def test_global_options_may_stand_after_the_verb_but_not_behind_the_dashes():
    argv = ["run", "a.py", "--home", "/h", "--url=x", "-n", "2", "--", "--home", "/theirs"]
    hoisted = "--home /h --url=x run a.py -n 2 -- --home /theirs"
    assert hoist(argv) == hoisted.split()


@pytest.mark.parametrize("argv", [["bogus"], ["ps", "--bogus"], ["show"], ["up", "--port", "x"]])
def test_wrong_usage_exits_1(argv, capsys):
    assert code_of(*argv) == 1
    assert capsys.readouterr().err


def test_arguments_of_the_script_are_asked_for_behind_the_dashes(capsys):
    assert code_of("run", "train.py", "--epochs", "5") == 1
    assert "go after --" in capsys.readouterr().err


def test_help_and_version_exit_0(capsys):
    assert code_of("--help") == 0
    assert code_of("--version") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("phalanx ")


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 100), ("running", 101), ("cancelled", 103)]
)
def test_exit_codes_of_jobs(state, code):
    assert exits.code_of(SimpleNamespace(state=state)) == code


def test_job_numbers():
    assert (job_number("j-12"), job_number("12")) == (12, 12)
    with pytest.raises(NotFound, match="'train' is not a job"):
        job_number("train")


def test_durations_of_options():
    assert duration("--grace", "1m") == 60.0
    assert duration("--grace", None) is None
    with pytest.raises(UserError, match="--grace: 'soon' is not a duration"):
        duration("--grace", "soon")


def test_errors_are_shown_with_every_problem_and_the_hint():
    error = SpecInvalid([Problem("a", "is wrong", "1"), Problem("b", "is worse")], "try harder")
    assert describe(error) == "phalanx: a: is wrong (got 1)\n  b: is worse\n  try harder"


def test_the_total_is_guessed_from_whole_epochs():
    pace = StepEstimate()
    assert pace.total(10, 0, 4) is None
    assert pace.total(30, 1, 4) == 120
    assert pace.total(45, 1, 4) == 120
    assert pace.total(None, None, None) is None


def test_a_guess_is_never_behind_what_is_done():
    pace = StepEstimate()
    pace.total(30, 1, 2)
    assert pace.total(70, 1, 2) == 70


def test_sparklines():
    assert output.sparkline([0.0, 1.0]) == "▁█"
    assert output.sparkline([5.0, 5.0]) == "▁▁"
    assert output.sparkline([None]) == ""
    assert len(output.sparkline([float(i) for i in range(1000)])) <= 32


def test_tables_for_programs_have_tabs(capsys):
    output.table(("A", "B"), [(1, None), ("x", 2)], "nothing")
    assert capsys.readouterr().out == "A\tB\n1\t\nx\t2\n"
    output.table(("A",), [], "nothing here")
    assert capsys.readouterr().err == "nothing here\n"


def test_the_check_up_names_what_is_wrong(tmp_path: Path):
    found = {one.subject: one for one in examine(tmp_path / "home")}
    assert {one.verdict for one in found.values()} <= {"ok", "warn"}
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = {one.subject: one for one in examine(blocked)}
    assert (found["home"].verdict, found["home"].remedy) == ("FAIL", "choose another --home")


# -- the home ------------------------------------------------------------------------------------


def test_a_home_is_private_and_keeps_its_token(tmp_path: Path):
    home = homes.prepare_home(tmp_path / "h")
    token = homes.read_token(home)
    modes = [path.stat().st_mode & 0o777 for path in (home.root, home.token_file)]
    assert modes == [0o700, 0o600]
    assert homes.read_token(homes.prepare_home(tmp_path / "h")) == token
    assert len(token) == 48


def test_a_home_of_another_format_is_refused(tmp_path: Path):
    home = homes.prepare_home(tmp_path / "h")
    home.version_file.write_text("99\n")
    with pytest.raises(ServerError, match="has format '99'"):
        homes.prepare_home(tmp_path / "h")


def test_a_file_is_no_home(tmp_path: Path):
    (tmp_path / "f").write_text("")
    with pytest.raises(ServerError, match="cannot be the home"):
        homes.prepare_home(tmp_path / "f")
    with pytest.raises(ServerError, match="cannot be the home"):
        embedded.begin(tmp_path / "f" / "h")


def test_a_home_is_held_once(tmp_path: Path):
    home = homes.prepare_home(tmp_path / "h")
    first, second = homes.HomeLock(home), homes.HomeLock(home)
    first.take(SystemClock(), 0.0)
    with pytest.raises(Conflict, match="is running already"):
        second.take(SystemClock(), 0.0)
    first.release()
    second.take(SystemClock(), 0.0)
    second.release()


def test_a_home_that_is_just_let_go_is_waited_for(tmp_path: Path):
    home = homes.prepare_home(tmp_path / "h")
    first, second = homes.HomeLock(home), homes.HomeLock(home)
    first.take(SystemClock(), 0.0)
    threading.Timer(0.1, first.release).start()
    second.take(SystemClock(), 60.0)
    second.release()


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(homes, "MAX_LOG_BYTES", 10)
    log = tmp_path / "server.log"
    log.write_text("x" * 5)
    homes.rotate_log(log)
    assert log.exists()
    log.write_text("x" * 50)
    homes.rotate_log(log)
    assert not log.exists()
    assert (tmp_path / "server.log.1").stat().st_size == 50


def test_a_taken_port_is_one_clear_message():
    with bind(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} of 127.0.0.1 is in use"):
            bind(port)
    with pytest.raises(ServerError, match="cannot be used"):
        bind(99_999)


def test_at_least_four_slots():
    assert default_slots() == max(4, len(os.sched_getaffinity(0)))


# -- finding a control plane -----------------------------------------------------------------------


def write_server_file(home: Path, **changes) -> None:
    me = this_process()
    body = {
        "pid": me.pid,
        "boot_id": me.boot_id,
        "started_ticks": me.start_ticks,
        "url": "http://127.0.0.1:1",
        "token": "t",
        "version": "0",
        "home": folder_identity(home),
    }
    (home / embedded.SERVER_FILE).write_text(json.dumps(body | changes))


def test_a_server_is_found_by_its_process(tmp_path: Path):
    assert embedded.find(tmp_path) is None
    write_server_file(tmp_path)
    found = embedded.find(tmp_path)
    assert found is not None and found.url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "change", [{"started_ticks": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}, {"url": None}]
)
def test_another_process_with_its_number_is_not_it(tmp_path: Path, change):
    write_server_file(tmp_path, **change)
    found = embedded.find(tmp_path)
    assert found is None or found.url is None


def test_half_a_server_file_is_none(tmp_path: Path):
    (tmp_path / embedded.SERVER_FILE).write_text('{"pid": 1')
    assert embedded.find(tmp_path) is None


def test_names_of_files_agree_with_the_layout_of_the_home(tmp_path: Path):
    """`embedded` avoids the import of the layout, which takes pydantic along."""
    home = HomeLayout(tmp_path)
    assert home.server_file.name == embedded.SERVER_FILE
    assert home.server_log.name == embedded.SERVER_LOG


def test_what_a_control_plane_that_ends_at_once_said(tmp_path: Path):
    (tmp_path / embedded.SERVER_LOG).write_bytes(b"old\nphalanx: it is broken\n  a hint\n")
    child = SimpleNamespace(poll=lambda: 1)
    starting = embedded.StartingServer(tmp_path, child, io.BytesIO(), 4)
    with pytest.raises(ServerError, match=r"^it is broken"):
        starting.finish(lambda text: None)
