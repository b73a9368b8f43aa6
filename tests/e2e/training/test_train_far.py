"""Two tiers under a real gang: the node and its disk go, the run goes on from the far copy."""

import random
import shutil

import pytest

from phalanx import checkpoint
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import open_store

pytest.importorskip("obstore")
pytest.importorskip("cryptography")
pytestmark = pytest.mark.e2e

KEY = bytes(range(32)).hex()


def far_job(gang, tmp_path, **more):
    url = f"file://{tmp_path}/far"
    extra = {"PHALANX_CHECKPOINT_STORE": url, "PHALANX_CHECKPOINT_ASYNC": "0", **more}
    return gang(every="5 steps", extra=extra), url


def killed_after_an_upload(job):
    job.start()
    job.wait_for(lambda: job.records(kind="uploaded"), "an upload")
    job.wait_for_step(12)
    job.kill(random.Random(1).randrange(job.world))


def test_with_the_disk_lost_the_run_goes_on_from_the_object_store(gang, reference, tmp_path):
    (tmp_path / "key").write_text(KEY)
    job, url = far_job(gang, tmp_path, PHALANX_CHECKPOINT_KEY_FILE=str(tmp_path / "key"))
    killed_after_an_upload(job)
    newest = checkpoint.list_checkpoints(job.store)[0]
    assert newest.manifest.encryption["cipher"] == "aes-256-gcm"
    shutil.rmtree(job.store)
    job.start().finish()
    assert job.records(kind="restored")[0]["exact"] is True
    assert job.result["digest"] == reference()["digest"]
    found = remote.scrub(open_store(url, {}))
    here = [one.manifest.name for one in checkpoint.list_checkpoints(job.store)]
    assert here[0] in found and set(found.values()) == {"valid"}
    assert KEY not in job.output() + str(job.records())


def test_a_copy_that_rotted_here_is_fetched_again_from_there(gang, reference, tmp_path):
    job, url = far_job(gang, tmp_path)
    killed_after_an_upload(job)
    far = remote.look(open_store(url, {})).good
    newest = max(far.values(), key=lambda one: one.order)
    for one in checkpoint.list_checkpoints(job.store):
        file = one.path / "shard-00001/state.tensors"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    job.start().finish()
    assert job.records(kind="restored")[0]["name"] == newest.name
    assert job.records(kind="quarantined")
    assert job.result["digest"] == reference()["digest"]


def test_without_a_store_a_lost_disk_means_from_the_beginning(gang, tmp_path):
    job, _ = far_job(gang, tmp_path, PHALANX_CHECKPOINT_STORE="")
    job.start()
    job.wait_for_step(12)
    job.kill(0)
    shutil.rmtree(job.store)
    job.start().finish()
    assert not job.records(kind="restored")
