"""Inputs of a job in an object store, copied to the node before ranks start: a real S3 server."""

import json
import os
import shutil

import pytest

from phalanx.train.programs import resume_from, staging
from support.checkpoints import commit
from support.s3 import KEY, SECRET, needs_s3, s3_server

pytest.importorskip("obstore")
pytestmark = [pytest.mark.integration, needs_s3]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one


@pytest.fixture
def run(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folder = server.bucket / tmp_path.name
    for name in ("cat/a.txt", "b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 10)

    def begin(where=f"s3://bucket/{tmp_path.name}"):
        request = tmp_path / "request.json"
        body = {"root": str(tmp_path / "root"), "links": str(tmp_path / "links")}
        request.write_text(json.dumps({**body, "inputs": {"train": where}}))
        return staging.main([str(request)]), capsys.readouterr().out

    begin.folder, begin.train = folder, tmp_path / "links" / "train"
    yield begin
    shutil.rmtree(folder)


def test_objects_are_copied_once_and_again_when_one_was_replaced(run):
    code, said = run()
    assert code == 0 and "data train: staged: 2 files" in said, said
    assert (run.train / "cat" / "a.txt").read_text() == "cat/a.txt" * 10
    assert "was there: 2 files" in run()[1]
    # The same name and size: only the store's version of the object tells.
    (run.folder / "b.txt").write_text("B.TXT" * 10)
    os.utime(run.folder / "b.txt", (10**9, 10**9))
    code, said = run()
    assert code == 0 and "staged: 2 files" in said
    assert (run.train / "b.txt").read_text() == "B.TXT" * 10


def test_what_is_not_there_or_not_permitted_is_said(run, monkeypatch):
    code, said = run("s3://bucket/away")
    assert code != 0 and "data train: s3://bucket/away holds no files" in said
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, said = run()
    assert code != 0 and said.startswith("data train: ") and "wrong" not in said, said


def test_a_checkpoint_to_begin_from_is_fetched_and_verified(server, run, tmp_path, capsys):
    """In a folder of the store, by its own URL, and not where its bytes differ."""
    made = commit(tmp_path / "made", 3)
    far = server.bucket / tmp_path.name / "ckpt"
    shutil.copytree(made, far / made.name)
    request = tmp_path / "resume.json"

    def begin(place, into):
        request.write_text(json.dumps({"places": [place], "into": str(tmp_path / into)}))
        code = resume_from.main([str(request)])
        return code, capsys.readouterr().out

    url = f"s3://bucket/{tmp_path.name}/ckpt"
    for place, into in ((url, "one"), (f"{url}/{made.name}", "two")):
        assert begin(place, into)[0] == 0
        staged = json.loads((tmp_path / "resume.json.staged").read_bytes())
        assert staged["path"] == str(tmp_path / into / made.name)
    assert begin(f"s3://bucket/{tmp_path.name}/none", "three")[0] == 102
    (far / made.name / "state.bin").write_bytes(b"WEIGHTS" * 3)
    code, said = begin(url, "four")
    assert code == 102 and "do not match their digest" in said
