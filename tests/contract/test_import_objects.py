"""`phalanx admin import-home --objects`: files of a home in a real S3 store, read back and resumable."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from integration.rig import URL, Rig, open_rig, spec
from integration.test_checkpoint_remote import save
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import ObjectStore, open_store
from phalanx.errors import DataUnavailable, PlatformError, StoreCorrupt
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.server.settings import ApiSettings, Settings, StorageSettings
from phalanx.services.lifecycle import code
from phalanx.standalone.home import prepare_home
from phalanx.standalone.import_home import main
from phalanx.standalone.import_objects import ObjectImport
from support.databases import PostgresServer
from support.s3 import KEY, SECRET, S3Server, needs_s3, s3_server

pytest.importorskip("obstore")
pytestmark = [pytest.mark.extras, pytest.mark.sqlite, needs_s3]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one


@pytest.fixture
def prefix(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/import-{next(_numbers)}"


def archive(text: str) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        header = tarfile.TarInfo("train.py")
        header.size = len(text)
        tar.addfile(header, io.BytesIO(text.encode()))
    return found.getvalue()


def uploaded(rig: Rig, text: str) -> str:
    data = archive(text)
    digest = hashlib.sha256(data).hexdigest()
    rig.client.put_code(digest, data)
    return digest


@pytest.fixture
def home(tmp_path: Path) -> HomeLayout:
    """A home with a job, its code, two checkpoints of which one has rotted, a trace and debris."""
    made = prepare_home(tmp_path / "home")
    with open_rig(made.root) as rig:
        digest = uploaded(rig, "print(1)")
        rig.client.submit(SubmitRequest(spec=spec(), owner="ada", code=digest))
    folder = made.checkpoints_dir / "default" / "j-1"
    folder.mkdir(parents=True)
    save(folder, 1)
    rotten = save(folder, 2)
    (rotten / "shard-00001" / "state.tensors").write_bytes(b"x" * 3000)
    (folder / "step-00000030-00000003.tmp").mkdir()
    trace = folder / "profiles" / "one.trace.json.gz"
    trace.parent.mkdir()
    trace.write_bytes(b"a trace")
    return made


def test_files_arrive_whole_and_a_repetition_goes_on(
    home: HomeLayout,
    prefix: str,
    postgres: PostgresServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = home.root.parent / "url"
    named.write_text(postgres.create(f"objects_{next(_numbers)}"))
    words = ["--home", str(home.root), "--database-url", f"file:{named}", "--objects", prefix]
    before = {p: p.read_bytes() for p in home.checkpoints_dir.rglob("*") if p.is_file()}
    with monkeypatch.context() as broken:
        # The store fails in the middle: the rows are moved, and the first checkpoint is there.
        broken.setattr(ObjectImport, "_code", lambda self: (_ for _ in ()).throw(OSError("no")))
        assert main(words) == 1
    assert home.database_place.exists() and not home.database_file.exists()
    assert "no" in capsys.readouterr().err
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "checkpoints: 0 copied (0 B), 1 known, 1 left in the home; every byte" in said
    assert "left in the home: checkpoints/default/j-1/step-00000020-00000002: " in said
    assert "code: 1 copied" in said and "profiles: 1 copied" in said
    assert f"PHALANX__STORAGE__OBJECTS={prefix} phalanx up" in said
    far = open_store(f"{prefix}/checkpoints/default/j-1", os.environ)
    assert remote.scrub(far) == {"step-00000010-00000001": "valid"}
    assert open_store(prefix, os.environ).get("profiles/default/j-1/profiles/one.trace.json.gz")
    assert {p: p.read_bytes() for p in before} == before, "nothing in the home changes"
    assert main(words) == 0
    assert "code: 0 copied (0 B), 1 known" in capsys.readouterr().out
    lines = (home.root / "import-objects.jsonl").read_text().splitlines()
    assert len(lines) == 3 and all(json.loads(line)["url"] == prefix for line in lines)


def test_other_bytes_in_the_store_end_the_copy(
    home: HomeLayout, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ObjectStore.stream
    monkeypatch.setattr(
        ObjectStore,
        "stream",
        lambda self, name, part=None: iter([b"".join(stream(self, name)) + b"!"]),
    )
    with pytest.raises(StoreCorrupt, match="was read back with other bytes"):
        ObjectImport(home, prefix, os.environ, print).run()
    assert not (home.root / "import-objects.jsonl").exists()


def test_any_control_plane_serves_code_from_the_store(prefix: str, tmp_path: Path) -> None:
    settings = Settings(storage=StorageSettings(objects=prefix), api=ApiSettings(max_stream_s=0))
    with (
        open_rig(tmp_path / "one", settings=settings) as one,
        open_rig(tmp_path / "two", settings=settings) as two,
        open_rig(tmp_path / "three") as alone,
    ):
        digest = uploaded(one, "print('of any replica')")
        assert not code.archive_path(two.platform.home, digest).exists()
        assert not code.has(alone.platform, digest)
        view = two.client.submit(SubmitRequest(spec=spec(), owner="ada", code=digest)).job
        assert view is not None
        code.archive_path(two.platform.home, digest).unlink()  # the cache may go at any time
        two.turn()
        supervisor = two.supervisor(view.num)
        assert (Path(supervisor.assignment.workdir) / "train.py").read_text().endswith("replica')")
        code.archive_path(two.platform.home, digest).unlink()
        headers = {"Authorization": f"Bearer {supervisor.token}"}
        place = {"job": view.num, "attempt": 1, "node_rank": 0}
        with httpx.Client(base_url=URL, transport=two.transport, headers=headers) as http:
            answer = http.get(f"/api/v1/supervisors/code/{digest}", params=place)
        assert hashlib.sha256(answer.content).hexdigest() == digest
        assert not code.has(two.platform, "0" * 64)
        code.remove(one.platform, digest, 1e12)
        code.archive_path(two.platform.home, digest).unlink()
        assert not code.has(two.platform, digest)


def test_a_store_that_is_away_is_told_and_not_taken_for_missing_code(
    prefix: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with open_rig(
        tmp_path / "one", settings=Settings(storage=StorageSettings(objects=prefix))
    ) as one:
        with pytest.raises(PlatformError, match=r"cannot be (read|written)") as caught:
            uploaded(one, "print(1)")
        assert caught.value.http_status == 503 and "wrong" not in str(caught.value)
    with pytest.raises(ValidationError, match="must be an object store's prefix"):
        StorageSettings(objects="https://example.org/x")


def test_a_forged_archive_is_not_served(prefix: str, server: S3Server, tmp_path: Path) -> None:
    settings = Settings(storage=StorageSettings(objects=prefix))
    with open_rig(tmp_path / "one", settings=settings) as one:
        digest = uploaded(one, "print(1)")
        code.archive_path(one.platform.home, digest).unlink()
        (file,) = server.bucket.glob(f"{prefix.rpartition('/')[2]}/code/*/{digest}.tar")
        file.write_bytes(file.read_bytes().replace(b"print(1)", b"print(2)"))
        with pytest.raises(DataUnavailable, match="does not match its digest"):
            code.has(one.platform, digest)
        assert not code.archive_path(one.platform.home, digest).exists()
        assert list(one.platform.home.code_dir.iterdir()) == []
