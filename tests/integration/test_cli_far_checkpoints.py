"""The verb checkpoints on an object store's URL, sealed and plain."""

import json

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import remote
from phalanx.checkpoint.encryption import AesGcmEncryption, Encryption, EncryptionKey
from phalanx.checkpoint.remote_store import open_store
from phalanx.cli.__main__ import main as program
from phalanx.core.training.checkpoints import checkpoint_name
from support.manifests import manifest_of

pytest.importorskip("obstore")
pytestmark = pytest.mark.integration
HEX = "3c" * 32


def run(capsys, *argv) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        program(["checkpoints", *map(str, argv)])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def save(folder, step, seal):
    """One checkpoint of one file, as a rank writes it."""
    draft = checkpoint.CheckpointWriter(folder, checkpoint_name(step, f"{step:08x}"))
    pieces = seal.wrap(f"{draft.name}/shard-00000/state.tensors", [bytes(range(256)) * 20])
    draft.add_bytes("shard-00000/state.tensors", b"".join(bytes(memoryview(one)) for one in pieces))
    manifest = manifest_of(step, name=draft.name, global_batch=8, files=draft.files)
    return draft.commit(seal.stamp(manifest))


@pytest.fixture(params=["plain", "sealed"])
def places(request, tmp_path):
    """(seal's name, local folder, URL of its copies) with steps 10 and 20."""
    seal = (
        Encryption() if request.param == "plain" else AesGcmEncryption([EncryptionKey.parse(HEX)])
    )
    url = f"file://{tmp_path}/far"
    store = open_store(url, {})
    for step in (10, 20):
        one = remote.CheckpointUpload(save(tmp_path / "near", step, seal))
        one.send(store, {})
        one.close()
    return request.param, tmp_path / "near", url


def test_list_show_verify_scrub(capsys, places):
    _, near, url = places
    for place in (near, url):
        code, out, _ = run(capsys, "list", place)
        assert (code, [line.split()[0] for line in out.splitlines()[1:]]) == (0, ["20", "10"])
        code, out, _ = run(capsys, "show", place, "--json")
        assert (code, json.loads(out)["step"]) == (0, 20)
        for action in ("verify", "scrub"):
            code, out, _ = run(capsys, action, place)
            assert (code, out.count(": valid")) == (0, 2)
    code, out, _ = run(capsys, "verify", f"{url}/step-00000010-0000000a", "--json")
    assert list(json.loads(out).values()) == ["valid"]


def test_with_a_key_only_what_it_opens_is_valid(capsys, places, monkeypatch):
    kind, near, url = places
    monkeypatch.setenv("MY_KEY", HEX)
    monkeypatch.setenv("OTHER", "11" * 32)
    for place in (near, url):
        code, out, _ = run(capsys, "verify", place, "--key-env", "MY_KEY")
        assert (code, out.count(": valid")) == ((0, 2) if kind == "sealed" else (1, 0))
        code, out, err = run(capsys, "verify", place, "--key-env", "OTHER")
        assert (code, out.count(": valid"), HEX in out + err) == (1, 0, False)
    code, _, err = run(capsys, "verify", near, "--key-env", "NOT_SET")
    assert (code, "the variable NOT_SET is not set" in err) == (1, True)


def test_rot_is_found_and_the_last_one_is_spared(capsys, places, tmp_path):
    _, _, url = places
    file = tmp_path / "far" / "step-00000020-00000014" / "shard-00000" / "state.tensors"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    code, out, err = run(capsys, "scrub", url)
    assert (code, out.count(": valid"), "1 of 2" in err) == (1, 1, True)
    assert "a resume skips it" in out
    assert run(capsys, "rm", f"{url}/step-00000020-00000014")[0] == 0
    code, _, err = run(capsys, "rm", f"{url}/step-00000010-0000000a")
    assert (code, "is the last valid checkpoint" in err) == (1, True)
    assert run(capsys, "rm", f"{url}/step-00000010-0000000a", "--force")[0] == 0
    code, _, err = run(capsys, "list", url)
    assert (code, "no checkpoints here" in err) == (0, True)


def test_wrong_words(capsys, tmp_path):
    url = f"file://{tmp_path}/far"
    assert run(capsys, "show", f"{url}/step-00000010-0000000a")[0] == 102
    assert run(capsys, "verify", url)[0] == 102
    assert run(capsys, "rm", url)[0] == 1
    code, _, err = run(capsys, "list", "s3://key:secret@bucket/x")
    assert (code, "come from the environment" in err, "secret" in err) == (1, True, False)
    code, _, err = run(capsys, "list", "http://somewhere/x")
    assert (code, "AWS_ENDPOINT_URL" in err) == (1, True)
