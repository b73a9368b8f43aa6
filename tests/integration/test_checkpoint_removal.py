"""Copies of deleted jobs go from a real S3 server; credentials go nowhere but where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.rig import Rig
from phalanx.checkpoint.commit import sealed
from phalanx.checkpoint.removal.far import FarRequest, remove_far
from phalanx.core.training.checkpoints import MANIFEST
from phalanx.errors import CheckpointUnavailable, PermissionDenied
from phalanx.services.retention.places import JobPlaces, check_store, store_env
from phalanx.services.secrets.values import set_secret
from support.manifests import manifest_of
from support.s3 import BUCKET, KEY, SECRET, S3Server, needs_s3, s3_server

pytestmark = pytest.mark.integration
URL = f"s3://{BUCKET}/team/default/j-1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as found:
        yield found


def commit(server: S3Server, step: int, uid: str, below: str = "") -> Path:
    made = manifest_of(step, root="r", job_uid=uid)
    path = server.bucket / "team" / "default" / "j-1" / below / made.name
    path.mkdir(parents=True)
    (path / "state").write_bytes(b"x" * 50)
    (path / MANIFEST).write_bytes(sealed(made))
    return path


def env_of(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@needs_s3
def test_copies_of_a_job_go_and_those_of_another_stay(server: S3Server, rig: Rig) -> None:
    mine, base = commit(server, 10, "uid-1"), rig.platform.base_env
    half = mine.with_name("step-00000011-0000000b")
    half.mkdir()
    (half / "part").write_bytes(b"y" * 7)
    mark = mine.parent / "generations" / "00000001-00000000"
    mark.parent.mkdir()
    mark.write_bytes(b"x")
    role = commit(server, 10, "uid-1", "roles/eval")
    request = FarRequest(URL, "uid-1", [mine.name])
    only = remove_far(replace(request, only=["step-00000099-00000000"]), env_of(server), base, 60)
    assert only.count == 0 and mine.is_dir()
    done = remove_far(request, env_of(server), base, 60)
    assert done.count == 2 and done.num_bytes > 57
    assert not any(one.is_file() for one in mine.parent.glob("step-*/*")) and not mark.exists()
    assert (role / "state").exists()
    assert remove_far(request, env_of(server), base, 60).count == 0
    again, other = commit(server, 20, "uid-1"), commit(server, 30, "uid-2")
    debris = mine.with_name("step-00000040-00000028")
    debris.mkdir()
    (debris / "part").write_bytes(b"y")
    assert remove_far(request, env_of(server), base, 60).count == 0
    both = FarRequest(URL, "uid-1", [again.name, other.name])
    assert remove_far(both, env_of(server), base, 60).count == 1
    assert (other / "state").exists() and (debris / "part").exists()


@needs_s3
def test_a_store_that_is_away_or_refuses_says_so(server: S3Server, rig: Rig) -> None:
    request = FarRequest(URL, None, [])
    wrong = env_of(server) | {"AWS_SECRET_ACCESS_KEY": "wrong-secret-of-nobody"}
    with pytest.raises(PermissionDenied) as refused:
        remove_far(request, wrong, rig.platform.base_env, 60)
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(CheckpointUnavailable, match="within 0 s"):
        remove_far(request, env_of(server), rig.platform.base_env, 0.01)


def with_own_credentials(rig: Rig, **env: str) -> None:
    rules = replace(rig.platform.retention, store_env=env)
    object.__setattr__(rig.platform, "retention", rules)


def test_the_credentials_of_the_control_plane_go_to_their_own_address_alone(rig: Rig) -> None:
    with_own_credentials(rig, AWS_ACCESS_KEY_ID="own", AWS_ENDPOINT_URL="http://own")
    elsewhere = JobPlaces(env={"AWS_ENDPOINT_URL": "http://evil"}, withheld=("AWS_ACCESS_KEY_ID",))
    with pytest.raises(CheckpointUnavailable, match="no credentials are known"):
        store_env(rig.platform, "default", URL, elsewhere)
    with pytest.raises(CheckpointUnavailable):
        store_env(rig.platform, "default", URL, JobPlaces())
    here = JobPlaces(env={"AWS_ENDPOINT_URL": "http://own", "AWS_REGION": "x"})
    assert store_env(rig.platform, "default", URL, here)["AWS_ACCESS_KEY_ID"] == "own"


def test_secrets_of_the_project_open_the_store_of_its_jobs(rig: Rig) -> None:
    with_own_credentials(rig, AWS_ACCESS_KEY_ID="own")
    now = rig.clock.now()
    set_secret(rig.platform, "default", "AWS_SECRET_ACCESS_KEY", "of-the-project", now, actor="t")
    places = JobPlaces(
        env={"AWS_ENDPOINT_URL": "http://theirs"}, secrets=("AWS_SECRET_ACCESS_KEY",)
    )
    assert store_env(rig.platform, "default", URL, places) == {
        "AWS_ENDPOINT_URL": "http://theirs",
        "AWS_SECRET_ACCESS_KEY": "of-the-project",
    }


def test_the_settings_limit_the_stores(rig: Rig) -> None:
    check_store(rig.platform, URL)
    rules = replace(rig.platform.retention, stores=(f"s3://{BUCKET}/team/", "s3://other"))
    object.__setattr__(rig.platform, "retention", rules)
    check_store(rig.platform, URL)
    for url in (f"s3://{BUCKET}/team2/default/j-1", "s3://others/default/j-1", "file:///x"):
        with pytest.raises(PermissionDenied, match="not among the stores"):
            check_store(rig.platform, url)
