"""Two tiers: a real S3 server on loopback, connections that break, uploaders that are killed."""

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import random
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import remote, remote_store
from phalanx.checkpoint.remote_mirror import Mirror
from phalanx.checkpoint.remote_store import ObjectStore, open_store
from phalanx.checkpoint.remote_tier import CheckpointTier, RemoteTier
from phalanx.core.training.checkpoints import (
    MANIFEST,
    FileEntry,
    Keep,
    Position,
    checkpoint_name,
)
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, NotFound, PermissionDenied
from phalanx.kit.clock import SystemClock
from phalanx.train.gang.report import NoReport
from phalanx.train.state.storage import CheckpointStorage
from support.manifests import manifest_of
from support.s3 import KEY, SECRET, needs_s3, s3_server
from support.waiting import wait_until

pytest.importorskip("obstore")
pytestmark = pytest.mark.integration

HANG_GUARD_S = 90.0
BIG = 9 << 20  # more than one part of a multipart upload


def save(store, commit, parent=None, big=0):
    """A checkpoint of two files, with content of its own."""
    name = checkpoint_name(commit * 10, f"{commit:08x}")
    draft = checkpoint.CheckpointWriter(store, name)
    draft.add_bytes("shard-00000/state.tensors", random.Random(commit).randbytes(1000 + big))
    draft.add_bytes("shard-00001/state.tensors", random.Random(-commit).randbytes(3000))
    return draft.commit(
        manifest_of(
            commit * 10,
            position=Position(consumed=commit),
            commit=commit,
            parent=parent,
            world_size=2,
            reference_world=2,
            global_batch=8,
            created_at=time.time_ns() // 1000,
            files=draft.files,
        )
    )


def content(path):
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


# -- a real server, and a gate before it ---------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(port, directory behind its bucket) of an S3 server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one.port, one.bucket


class Gate(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Passes requests on, keeps conditions that the server behind it ignores, and breaks connections.

    `faults` are used up one by one: `upload` is cut in the request's body, `silence` loses the answer to
    a conditional request that was carried out, and `download` is cut in the answer's body.
    """

    daemon_threads = True

    def __init__(self, port, root):
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind, self.root = port, root
        self.faults, self.used = [], []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    def take(self, kinds):
        with self.lock:
            if self.faults and self.faults[0] in kinds:
                self.used.append(self.faults.pop(0))
                return self.used[-1]
        return None


class Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle_request(self):
        size = int(self.headers.get("Content-Length") or 0)
        conditional = self.headers.get("If-None-Match") == "*"
        kinds = ("upload", "silence") if conditional else ("upload",)
        fault = self.server.take(kinds) if self.command == "PUT" else None
        if fault == "upload":
            self.rfile.read(size // 2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(size)
        path = self.server.root.parent / self.path.partition("?")[0].lstrip("/")
        with self.server.lock if conditional else contextlib.nullcontext():
            if conditional and path.exists():
                status, headers, answer = 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
            else:
                status, headers, answer = self.pass_on(body)
        if fault == "silence":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.reply(status, headers, answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def pass_on(self, body):
        link = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        link.request(self.command, self.path, body or None, dict(self.headers.items()))
        answer = link.getresponse()
        data = answer.read()
        link.close()
        return answer.status, answer.getheaders(), data

    def reply(self, status, headers, data):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        size = len(data)
        if self.command == "HEAD":
            size = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if size > 500 and self.command == "GET" and self.server.take(("download",)):
            self.wfile.write(data[: size // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def gate(server):
    made = Gate(*server)
    yield made
    made.shutdown()
    made.server_close()


def environment(port, secret=SECRET):
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }


@pytest.fixture
def s3(monkeypatch):
    """Have the environment point to a server; returns a client of a prefix."""

    def use(port, prefix, **options):
        for name, value in environment(port, options.pop("secret", SECRET)).items():
            monkeypatch.setenv(name, value)
        opened = open_store(f"s3://bucket/{prefix}", os.environ)
        return ObjectStore(opened._client, **options) if options else opened

    return use


def near(tmp_path):
    return tmp_path / "near"


def far_folder(tmp_path):
    """A store that is a folder: quick, and as strict about conditions as S3."""
    return open_store(f"file://{tmp_path}/far", {})


def upload(store, path):
    one = remote.CheckpointUpload(path)
    try:
        objects = remote.look(store).objects
        return one.send(store, objects.get(path.name, {}))
    finally:
        one.close()


# -- one checkpoint ------------------------------------------------------------------------------


@needs_s3
def test_a_checkpoint_goes_to_s3_and_comes_back(server, s3, tmp_path):
    store = s3(server[0], tmp_path.name)
    path = save(near(tmp_path), 1, big=BIG)
    assert upload(store, path) == checkpoint.verify(path).size_bytes
    listing = remote.look(store)
    assert list(listing.good) == [path.name] and not listing.bad and not listing.debris
    assert remote.scrub(store) == {path.name: "valid"}
    again = remote.fetch(store, path.name, tmp_path / "other", "1")
    assert content(again) == content(path)
    assert checkpoint.verify(again).commit == 1


@needs_s3
@pytest.mark.parametrize("conditions", ["kept", "ignored"])
def test_the_manifest_is_never_replaced(server, gate, s3, tmp_path, conditions):
    """The server at hand ignores If-None-Match; the gate before it does not, as S3 does not."""
    port = gate.server_address[1] if conditions == "kept" else server[0]
    store = s3(port, tmp_path.name)
    path = save(near(tmp_path), 1)
    theirs = f"{path.name}/{MANIFEST}"
    assert store.create(theirs, b"theirs")
    assert store.create(theirs, b"ours") is (conditions == "ignored")
    assert store.get(theirs) == (b"theirs" if conditions == "kept" else b"ours")
    if conditions == "kept":
        with pytest.raises(CheckpointCorrupt, match="another process has written"):
            upload(store, path)
        assert store.get(theirs) == b"theirs"


@needs_s3
def test_broken_connections_cost_time_and_nothing_else(gate, s3, tmp_path):
    path = save(near(tmp_path), 1, big=2 << 20)
    gate.faults = ["upload", "upload", "silence"]
    patient = s3(gate.server_address[1], tmp_path.name, attempts=8, pause=lambda _: None)
    upload(patient, path)
    gate.faults = ["download"]
    again = remote.fetch(patient, path.name, tmp_path / "other", "1")
    assert len(gate.used) == 4 and content(again) == content(path)


@needs_s3
def test_without_another_try_a_broken_connection_ends_the_upload(gate, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(
        remote_store,
        "client_options",
        lambda url, given, environ: {
            "endpoint": environ["AWS_ENDPOINT_URL"],
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        },
    )
    hasty = s3(gate.server_address[1], tmp_path.name, attempts=1)
    gate.faults = ["upload"]
    with pytest.raises(CheckpointUnavailable):
        upload(hasty, save(near(tmp_path), 1))


@needs_s3
def test_wrong_credentials_are_said_and_not_shown(server, s3, tmp_path):
    with pytest.raises(PermissionDenied) as refused:
        remote.look(s3(server[0], tmp_path.name, secret="another-secret"))
    assert "another-secret" not in str(refused.value) and KEY not in str(refused.value)


def test_a_file_that_rotted_here_is_not_uploaded(tmp_path):
    store = far_folder(tmp_path)
    for commit, big in ((1, 0), (2, BIG)):
        path = save(near(tmp_path), commit, big=big)
        file = path / "shard-00000/state.tensors"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointCorrupt, match="do not match"):
            upload(store, path)
        assert store.objects() == []  # its first file is the bad one


def test_a_file_that_rotted_there_is_found_and_nothing_is_left_here(tmp_path):
    store = far_folder(tmp_path)
    path = save(near(tmp_path), 1)
    upload(store, path)
    file = tmp_path / "far" / path.name / "shard-00001/state.tensors"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    assert "do not match" in remote.scrub(store)[path.name]
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointCorrupt, match="shard-00001"):
        remote.fetch(store, path.name, tmp_path / "other", "1")
    assert list((tmp_path / "other").iterdir()) == []


def test_half_a_checkpoint_is_none(tmp_path):
    store = far_folder(tmp_path)
    path = save(near(tmp_path), 1)
    upload(store, path)
    (tmp_path / "far" / path.name / "shard-00001/state.tensors").unlink()
    listing = remote.look(store)
    assert not listing.good and "missing" in listing.bad[path.name]
    upload(store, path)  # and it heals
    assert list(remote.look(store).good) == [path.name]
    (tmp_path / "far" / path.name / MANIFEST).unlink()
    assert path.name in remote.look(store).debris
    with pytest.raises(NotFound):
        remote.fetch(store, path.name, tmp_path / "other", "1")


@pytest.mark.parametrize("evil", ["../../out", "/tmp/out", "a/../../out", "MANIFEST.json"])
def test_a_manifest_cannot_write_outside_its_folder(tmp_path, evil):
    store = far_folder(tmp_path)
    path = save(near(tmp_path), 1)
    manifest = checkpoint.read_manifest(path)
    forged = replace(manifest, files=(FileEntry(evil, 1, "blake2b-128:00"),))
    store.create(f"{path.name}/{MANIFEST}", checkpoint.commit.sealed(forged))
    assert "not a valid name" in remote.look(store).bad[path.name]
    with pytest.raises(CheckpointCorrupt, match="not a valid name"):
        remote.fetch(store, path.name, tmp_path / "other", "1")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("uid", ["mine", None], ids=["guarded", "without the guard"])
def test_checkpoints_of_another_job_with_the_same_number_are_left_alone(tmp_path, uid):
    """A new home with the same store: its j-1 finds the copies of the other j-1."""
    store, there = far_folder(tmp_path), []
    theirs = save(tmp_path / "theirs", 9)
    upload(store, theirs)
    ours = save(near(tmp_path), 1)
    manifest = replace(checkpoint.read_manifest(ours), job_uid="mine")
    (ours / MANIFEST).write_bytes(checkpoint.commit.sealed(manifest))
    mirror = Mirror(store, near(tmp_path), Keep(last=1), there.append, SystemClock(), uid)
    while mirror.step():
        pass
    found = set(remote.look(store).good)
    if uid:
        assert found == {ours.name, theirs.name} and set(mirror.look().good) == {ours.name}
        warning = next(one["message"] for one in there if one["event"] == "warn")
        assert "of another job with this number" in warning
    else:
        assert theirs.name in mirror.look().good or ours.name not in found


def test_an_interrupted_upload_goes_on_where_it_stopped(tmp_path):
    store = far_folder(tmp_path)
    path = save(near(tmp_path), 1)

    class Breaks(Exception):
        pass

    class Breaking:
        def __getattr__(self, name):
            return getattr(store, name)

        def put(self, name, pieces, size_bytes):
            if "shard-00001" in name:
                raise Breaks
            store.put(name, pieces, size_bytes)

    with pytest.raises(Breaks):
        upload(Breaking(), path)
    assert remote.look(store).good == {}
    assert upload(store, path) == 3000  # the other file was there
    assert remote.scrub(store) == {path.name: "valid"}


def test_what_retention_deletes_here_in_the_middle_still_arrives(tmp_path):
    store = far_folder(tmp_path)
    path = save(near(tmp_path), 1)
    one = remote.CheckpointUpload(path)
    checkpoint.remove(path)
    one.send(store, {})
    one.close()
    assert remote.scrub(store) == {path.name: "valid"}


def test_retention_there_keeps_what_the_spec_says_and_young_debris(tmp_path):
    store = far_folder(tmp_path)
    mirror = Mirror(store, near(tmp_path), Keep(last=2), lambda event: None, SystemClock())
    parent = None
    for commit in (1, 2, 3):
        parent = save(near(tmp_path), commit, parent).name
        while mirror.step():
            pass
    store.put("step-00000099-00000099/shard-00000/x", lambda: [b"x"], 1)
    while mirror.step():
        pass
    listing = remote.look(store)
    assert sorted(one.step for one in listing.good.values()) == [20, 30]
    assert set(listing.debris) == {"step-00000099-00000099"}
    day = (time.time_ns() // 1000) + int(2 * remote.DEBRIS_AGE_S * 1e6)
    assert remote.retain(store, listing, Keep(), day, busy=lambda name: True) == []
    assert remote.retain(store, listing, Keep(), day, busy=lambda name: False) == [
        "step-00000099-00000099"
    ]
    assert remote.look(store).debris == {}


# -- the process that uploads --------------------------------------------------------------------


class Far:
    """A FarTier and what it told."""

    def __init__(self, url, local, keep=None):
        self.told = []
        self.tier = RemoteTier(url, local, keep or Keep(), lambda *said: self.told.append(said))

    def names(self, kind):
        return [said["name"] for what, said in self.told if what == kind]


def test_saved_here_loaded_there(tmp_path):
    url = f"file://{tmp_path}/far"
    one = Far(url, near(tmp_path), Keep(last=2))
    paths = []
    for commit in (1, 2, 3):
        parent = paths[-1].name if paths else None
        paths.append(save(near(tmp_path), commit, parent))
    one.tier.committed()
    one.tier.finish(HANG_GUARD_S)
    assert sorted(one.names("uploaded")) == [paths[1].name, paths[2].name]  # 1 would not stay
    before = content(paths[2])
    shutil.rmtree(near(tmp_path))
    other = Far(url, near(tmp_path))
    assert sorted(other.tier.manifests()) == [paths[1].name, paths[2].name]
    assert other.tier.has_another(paths[2])
    assert other.tier.bring(paths[2]) and content(paths[2]) == before
    assert not other.tier.has_another(paths[2])
    assert not CheckpointTier().bring(paths[1])
    other.tier.finish(HANG_GUARD_S)


def _uploader(url, local, port):
    """The process itself, with more to do than it has time for."""
    child = subprocess.Popen(
        [sys.executable, "-m", "phalanx.checkpoint.remote_mirror"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment(port)},
    )
    opening = {"url": url, "local": str(local), "keep": {"last": 3}}
    for line in (opening, {"op": "mirror"}):
        child.stdin.write(json.dumps(line).encode() + b"\n")
    child.stdin.flush()
    return child


def _kill_many(store, url, port, tmp_path, times):
    rng = random.Random(times)
    parent, whole = None, {}
    for commit in range(1, times + 1):
        path = save(near(tmp_path), commit, parent, big=BIG if commit % 2 else 300_000)
        parent, whole[path.name] = path.name, content(path)
        child = _uploader(url, near(tmp_path), port)
        time.sleep(rng.uniform(0.1, 0.6))  # the moment of the kill is the point of this test
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=HANG_GUARD_S)
        listing = remote.look(store)
        assert not listing.bad
        if listing.good:
            newest = max(listing.good.values(), key=lambda one: one.order).name
            again = remote.fetch(store, newest, tmp_path / f"again{commit}", "1")
            assert content(again) == whole[newest]
            shutil.rmtree(tmp_path / f"again{commit}")
    last = Far(url, near(tmp_path), Keep(last=3))
    last.tier.committed()
    last.tier.finish(HANG_GUARD_S)
    found = remote.scrub(store)
    assert found[parent] == "valid" and set(found.values()) == {"valid"}


def test_an_uploader_killed_at_any_moment_loses_nothing(tmp_path):
    _kill_many(far_folder(tmp_path), f"file://{tmp_path}/far", 1, tmp_path, 5)


@pytest.mark.proof
@needs_s3
def test_an_uploader_killed_sixty_times_loses_nothing(server, s3, tmp_path):
    store = s3(server[0], tmp_path.name)
    _kill_many(store, f"s3://bucket/{tmp_path.name}", server[0], tmp_path, 60)


def test_the_uploader_does_not_outlive_its_parent(tmp_path):
    """Not even when a worker of the parent holds the pipe open."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from phalanx.checkpoint.remote_tier import RemoteTier\n"
        "from phalanx.core.training.checkpoints import Keep\n"
        "tier = RemoteTier(sys.argv[1], Path(sys.argv[2]), Keep(), print)\n"
        "tier.manifests()\n"
        "worker = os.fork()\n"
        "if worker == 0:\n"
        "    time.sleep(600)\n"
        "print(tier._child.pid, worker, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, f"file://{tmp_path}/far", str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    uploader, worker = map(int, parent.stdout.readline().split())
    try:
        assert Path(f"/proc/{uploader}").exists()
        parent.kill()
        parent.wait(HANG_GUARD_S)
        wait_until(lambda: _ended(uploader), "the uploader lives on")
    finally:
        os.kill(worker, signal.SIGKILL)
        parent.stdout.close()


def _ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_dead_uploader_is_started_again(tmp_path):
    one = Far(f"file://{tmp_path}/far", near(tmp_path))
    one.tier.manifests()
    os.kill(one.tier._child.pid, signal.SIGKILL)
    one.tier._child.wait(HANG_GUARD_S)
    path = save(near(tmp_path), 1)
    one.tier.committed()
    one.tier.finish(HANG_GUARD_S)
    assert one.names("uploaded") == [path.name]


def test_a_store_that_does_not_answer_never_makes_a_run_begin_anew(tmp_path):
    class Silent(CheckpointTier):
        def manifests(self):
            raise CheckpointUnavailable("no answer")

    silent = CheckpointStorage(Silent())
    with pytest.raises(CheckpointUnavailable):
        silent.known(checkpoint.scan(near(tmp_path)), NoReport())
    path = save(near(tmp_path), 1)
    assert list(silent.known(checkpoint.scan(near(tmp_path)), NoReport())) == [path.name]
