"""The accept guard: connections of other users are closed before a program sees them."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from phalanx.launch import accept_guard
from phalanx.launch.files import private_folder, read_own_file
from phalanx.launch.ports import HeldPort, addresses_of, own_addresses

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: strangers are other users")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# Listens on a port of the kernel's choice or on the one given, and prints what each client got.
SERVER = """
import json, os, socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
server.settimeout(0.05)
for uid in (65534, 0):
    pid = os.fork()
    if pid == 0:
        os.setuid(uid)
        with socket.socket() as line:
            line.connect(server.getsockname())
            os._exit(7 if line.recv(9) else 8)
    got, ended = "closed", (0, 0)
    while not ended[0]:
        try:
            line, _ = server.accept()
            line.sendall(b"secret")
            line.close()
            got = "accepted"
        except TimeoutError:
            pass
        ended = os.waitpid(pid, os.WNOHANG)
    print(json.dumps([uid, got, os.waitstatus_to_exitcode(ended[1])]), flush=True)
"""


def answers(env, port=0):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SERVER, str(port)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def guard():
    path, said = accept_guard.library()
    assert path is not None, said
    return path


@needs_root
@needs_compiler
def test_a_guarded_port_is_closed_to_other_users_alone(guard):
    env = accept_guard.preloaded(accept_guard.variables("gang", [], []), guard)
    assert answers(env) == [[NOBODY, "closed", 8], [0, "accepted", 7]]
    # The control: the library does nothing without its variable.
    for control in ({}, {"PHALANX_ACCEPT": "off"}):
        found = answers(accept_guard.preloaded(control, guard))
        assert found[0] == [NOBODY, "accepted", 7]


@needs_root
@needs_compiler
def test_a_port_that_a_script_chose_is_its_own_business_unless_it_is_listed(guard):
    held = HeldPort()
    held.release()
    port = held.number
    env = accept_guard.preloaded(accept_guard.variables("gang", [], []), guard)
    assert answers(env, port)[0][1] == "accepted"
    listed = accept_guard.variables("gang", [port], [])
    assert answers(accept_guard.preloaded(listed, guard), port)[0][1] == "closed"
    everything = accept_guard.variables("all", [], [])
    assert answers(accept_guard.preloaded(everything, guard), port)[0][1] == "closed"


@needs_compiler
def test_a_listed_port_is_shared_with_the_supervisor_that_holds_it(guard):
    held = HeldPort()
    listed = accept_guard.variables("gang", [held.number], [])
    code = f"import socket; socket.create_server(('', {held.number})); print('ok')"
    for env, expected in ((accept_guard.preloaded(listed, guard), "ok"), ({}, "")):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == expected
    held.release()


@needs_root
def test_another_user_cannot_take_a_held_port():
    held = HeldPort()
    pid = os.fork()
    if pid == 0:
        os.setuid(NOBODY)
        thief = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            thief.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            thief.bind(("127.0.0.1", held.number))
        except OSError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    held.release()


def test_without_a_compiler_ranks_run_without_it_and_the_reason_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    assert accept_guard.library([tmp_path / "a"]) == (None, "there is no C compiler")
    monkeypatch.undo()
    assert accept_guard.library([tmp_path / "a"]) == (None, "there is no C compiler")
    assert accept_guard.preloaded({"A": "b"}, None) == {"A": "b"}
    assert accept_guard.variables("", [1], ["a"]) == {}


def test_another_preloaded_library_stays(tmp_path):
    found = accept_guard.preloaded({"LD_PRELOAD": "own.so"}, tmp_path / "accept-guard-1.so")
    assert found["LD_PRELOAD"].endswith("accept-guard-1.so:own.so")
    assert accept_guard.is_loaded({**found, "PHALANX_ACCEPT": "gang"})
    assert not accept_guard.is_loaded(found)


def test_addresses_are_known():
    assert "127.0.0.1" not in own_addresses()
    assert addresses_of("127.0.0.1") == ["127.0.0.1"]
    assert addresses_of("*") == []


@needs_root
def test_a_folder_that_another_user_made_first_is_not_used(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        private_folder(theirs)
    with pytest.raises(PermissionError, match="could be replaced"):
        private_folder(theirs / "phalanx")
    link = tmp_path / "link"
    link.symlink_to(theirs)
    with pytest.raises(OSError, match=r"irectory|link"):
        private_folder(link)
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can rename"):
        private_folder(loose / "phalanx")
    private_folder(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_file_that_another_user_wrote_is_not_read(tmp_path):
    own = tmp_path / "own"
    own.write_text("text")
    own.chmod(0o600)
    os.close(read_own_file(own))
    own.chmod(0o666)
    with pytest.raises(PermissionError, match="other users can write"):
        read_own_file(own)
    own.chmod(0o600)
    os.chown(own, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to user"):
        read_own_file(own)
    link = tmp_path / "link"
    link.symlink_to(own)
    with pytest.raises(OSError, match="symbolic links"):
        read_own_file(link)


@needs_compiler
def test_a_library_in_the_installation_needs_no_compiler_and_no_folder(tmp_path, monkeypatch):
    compiled = accept_guard.compile_into(tmp_path)
    assert compiled.parent == tmp_path and compiled.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == [compiled.name]
    monkeypatch.setattr(accept_guard.shutil, "which", lambda name: None)
    assert accept_guard.library([], tmp_path) == (compiled, "")
    # Without it, there is no guard where there is no compiler.
    compiled.unlink()
    found, said = accept_guard.library([tmp_path / "cache"], tmp_path)
    assert found is None and "no C compiler" in said
    with pytest.raises(OSError, match="no C compiler"):
        accept_guard.compile_into(tmp_path)
