"""What every secret manager does, run on each of them, and what HashiCorp Vault does beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import SecretManagerUnavailable, SecretRefused, UserError
from phalanx.kit.clock import ManualClock
from phalanx.schemas.home import HomeLayout
from phalanx.server.settings_groups.forms import file_or_value
from phalanx.services.secret_managers.mounted_files import MountedFiles
from phalanx.services.secret_managers.references import (
    PAUSE_S,
    SecretReference,
    SecretSource,
    SecretSources,
)
from phalanx.services.secret_managers.vault import VaultConfig, VaultSource, credential_error
from phalanx.standalone.certificates import GeneratedCertificate
from support.secret_server import ROLE, ROOT_TOKEN, SECRET_ID, FakeSecretServer, secret_server

pytestmark = pytest.mark.integration
VALUE = "correct-horse-battery-staple"


@dataclass
class Subject:
    """One manager, with ways to change what it holds."""

    manager: SecretSource
    put: Callable[..., None]
    go_away: Callable[[], None]
    forbid: Callable[[str, str], None]  # a path and a key


@contextmanager
def server_subject(tmp_path: Path) -> Iterator[Subject]:
    with secret_server() as server:
        config = VaultConfig(server.url, lambda: ROOT_TOKEN)

        def away() -> None:
            server.sealed = True

        def forbid(path: str, key: str) -> None:
            server.allowed = ("elsewhere/",)

        yield Subject(VaultSource(config, lambda: 0.0), server.put, away, forbid)


@contextmanager
def files_subject(tmp_path: Path) -> Iterator[Subject]:
    root = tmp_path / "mounted"

    def put(path: str, **values: str) -> None:
        """A new version, as Kubernetes writes one: a folder, and a link that is replaced at once."""
        folder = root / path
        folder.mkdir(parents=True, exist_ok=True)
        version = folder / f"..version-{len(list(folder.iterdir()))}"
        version.mkdir()
        for key, value in values.items():
            (version / key).write_text(value)
            if not (folder / key).is_symlink():
                (folder / key).symlink_to(f"..data/{key}")
        (folder / "..new").symlink_to(version.name)
        os.replace(folder / "..new", folder / "..data")

    def forbid(path: str, key: str) -> None:
        outside = tmp_path / "outside"
        outside.write_text(VALUE)
        (root / path / "..data" / key).unlink()
        (root / path / "..data" / key).symlink_to(outside)

    put("phalanx/other/hub", token="of another")
    yield Subject(MountedFiles(root), put, lambda: root.rename(tmp_path / "gone"), forbid)


@pytest.fixture(params=[server_subject, files_subject], ids=["vault", "files"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with request.param(tmp_path) as one:
        yield one


def test_keys_of_a_path_are_read_and_the_newest_version_counts(subject: Subject) -> None:
    subject.put("phalanx/vision/hub", token=VALUE, user="ada", other="x")
    read = subject.manager.read
    assert read("phalanx/vision/hub", ["token", "user"]) == {"token": VALUE, "user": "ada"}
    subject.put("phalanx/vision/hub", token="second", user="bob")
    assert read("phalanx/vision/hub", ["user", "token"]) == {"token": "second", "user": "bob"}


def test_what_is_missing_is_refused_without_a_value(subject: Subject) -> None:
    subject.put("phalanx/vision/hub", token=VALUE)
    for path, keys in (
        ("phalanx/vision/none", ["token"]),
        ("phalanx/vision/hub", ["none"]),
        ("phalanx/vision/hub", ["token", "none"]),
        ("phalanx/vision", ["token"]),
    ):
        with pytest.raises(SecretRefused) as caught:
            subject.manager.read(path, keys)
        assert VALUE not in str(caught.value)


def test_what_is_forbidden_is_refused(subject: Subject) -> None:
    subject.put("phalanx/vision/hub", token=VALUE)
    subject.forbid("phalanx/vision/hub", "token")
    with pytest.raises(SecretRefused) as caught:
        subject.manager.read("phalanx/vision/hub", ["token"])
    assert VALUE not in str(caught.value)


def test_a_manager_that_is_away_is_unavailable(subject: Subject) -> None:
    subject.put("phalanx/vision/hub", token=VALUE)
    subject.go_away()
    with pytest.raises(SecretManagerUnavailable) as caught:
        subject.manager.read("phalanx/vision/hub", ["token"])
    assert caught.value.retryable and VALUE not in str(caught.value)


# -- the seam ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vault",
        "vault:path",
        "vault:#key",
        "vault:a/../b#key",
        "vault:a//b#key",
        "vault:/a#key",
        "vault:a/#key",
        "vault:a b#key",
        "vault:a?list=true#key",
        "vault:a%2f..#key",
        "files:a#..data",
        "files:a#b/c",
        "Vault:a#key",
        "vault:a#key\n",
        "vault:a#" + "k" * 254,
    ],
)
def test_texts_that_are_no_references(text: str) -> None:
    with pytest.raises(UserError, match="MANAGER:PATH#KEY"):
        SecretReference.parse(text)


def test_a_project_reads_below_its_own_folder_alone(subject: Subject) -> None:
    manager = subject.manager
    if isinstance(manager, MountedFiles):
        manager = replace(manager, project_path="phalanx/{project}")
    managers = SecretSources([manager])
    refer = {}
    for project in ("vision", "vision2", "other"):
        subject.put(f"phalanx/{project}/hub", token=f"of {project}")
        text = f"{manager.name}:phalanx/{project}/hub#token"
        refer[project] = {"HUB": SecretReference.parse(text)}
    assert managers.read("vision", refer["vision"]) == {"HUB": "of vision"}
    for other in ("vision2", "other"):
        with pytest.raises(SecretRefused, match="of project vision are below phalanx/vision/"):
            managers.read("vision", refer[other])
        assert managers.read("", refer[other]) == {"HUB": f"of {other}"}, "the whole platform"
    with pytest.raises(SecretRefused, match=f"no secret manager cloud; configured: {manager.name}"):
        managers.read("vision", {"A": SecretReference("cloud", "phalanx/vision/hub", "token")})


@pytest.mark.parametrize("value", ["", "top\0secret", "x" * (64 << 10) + "x"])
def test_a_value_that_no_variable_can_have_is_refused(subject: Subject, value: str) -> None:
    subject.put("p/hub", token=value)
    reference = SecretReference(subject.manager.name, "p/hub", "token")
    with pytest.raises(SecretRefused) as caught:
        SecretSources([subject.manager]).read("", {"A": reference})
    assert "top" not in str(caught.value) and "xx" not in str(caught.value)


def test_a_manager_that_is_away_is_left_alone_for_a_while() -> None:
    clock = ManualClock()
    with secret_server() as server:
        manager = VaultSource(VaultConfig(server.url, lambda: ROOT_TOKEN), clock.monotonic)
        managers = SecretSources([manager], clock.monotonic)
        server.put("hub", a="1", b="2")
        wanted = {key.upper(): SecretReference("vault", "hub", key) for key in "ab"}
        assert managers.read("", wanted) == {"A": "1", "B": "2"}
        assert len(server.asked) == 1, "keys of one path are one request"
        server.sealed = True
        for _ in range(3):
            with pytest.raises(SecretManagerUnavailable, match="503 Vault is sealed"):
                managers.read("", wanted)
        assert len(server.asked) == 2
        server.sealed = False
        clock.advance(PAUSE_S)
        assert managers.read("", wanted) == {"A": "1", "B": "2"}


# -- HashiCorp Vault ---------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FakeSecretServer]:
    with secret_server() as one:
        yield one


def manager_of(server: FakeSecretServer, clock: ManualClock | None = None, **changes: Any):
    config = VaultConfig(server.url, lambda: ROOT_TOKEN)
    return VaultSource(replace(config, **changes), (clock or ManualClock()).monotonic)


def with_role(server: FakeSecretServer, clock: ManualClock, secret_id: str = SECRET_ID):
    return manager_of(server, clock, token=None, role_id=ROLE, secret_id=lambda: secret_id)


def test_an_approle_logs_in_once_again_before_its_token_ends_and_after_a_revocation(
    server: FakeSecretServer,
) -> None:
    clock = ManualClock()
    manager = with_role(server, clock)
    server.put("hub", token=VALUE)
    for _ in range(3):
        assert manager.read("hub", ["token"]) == {"token": VALUE}
    assert server.logins == 1
    clock.advance(server.lease_s * 0.9)
    manager.read("hub", ["token"])
    assert server.logins == 2
    server.tokens.clear()
    assert manager.read("hub", ["token"]) == {"token": VALUE}
    assert server.logins == 3
    # A permission that is missing is no reason to log in for each request.
    server.allowed = ("elsewhere",)
    with pytest.raises(SecretRefused, match=r"403 .*permission denied"):
        manager.read("hub", ["token"])
    assert server.logins == 4


def test_a_wrong_approle_and_a_wrong_token_are_refused_without_showing_them(
    server: FakeSecretServer,
) -> None:
    server.put("hub", token=VALUE)
    with pytest.raises(SecretRefused, match="400 invalid role or secret ID") as caught:
        with_role(server, ManualClock(), "a-wrong-one").read("hub", ["token"])
    assert "a-wrong-one" not in str(caught.value)
    with pytest.raises(SecretRefused, match="permission denied") as caught:
        manager_of(server, token=lambda: "hvs.wrong").read("hub", ["token"])
    assert "hvs.wrong" not in str(caught.value)


def test_namespaces_and_mounts_are_apart(server: FakeSecretServer) -> None:
    server.put("hub", token="of the root")
    server.put("hub", namespace="team/a", mount="kv/deep", token=VALUE)
    assert manager_of(server).read("hub", ["token"]) == {"token": "of the root"}
    other = manager_of(server, namespace="team/a", mount="kv/deep")
    assert other.read("hub", ["token"]) == {"token": VALUE}
    with pytest.raises(SecretRefused, match="no secret kv/deep/hub"):
        manager_of(server, mount="kv/deep").read("hub", ["token"])


def test_a_deleted_version_a_number_and_an_engine_of_version_1(server: FakeSecretServer) -> None:
    server.put("gone", token=VALUE)
    server.delete("gone")
    server.put("number", port=5432)
    read = manager_of(server).read
    with pytest.raises(SecretRefused, match="newest version is deleted"):
        read("gone", ["token"])
    with pytest.raises(SecretRefused, match="the key port of secret/number is not a text"):
        read("number", ["port"])
    server.body = b'{"data": {"token": "%s"}}' % VALUE.encode()
    server.put("hub", token=VALUE)
    with pytest.raises(SecretRefused, match="KV engine of version 2") as caught:
        read("hub", ["token"])
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("status", [412, 429, 472, 473, 500, 502, 503])
def test_answers_that_a_later_request_may_not_get(server: FakeSecretServer, status: int) -> None:
    server.status = status
    with pytest.raises(SecretManagerUnavailable, match=str(status)):
        manager_of(server).read("hub", ["token"])


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"x" * (5 << 20)])
def test_what_is_no_answer_of_it(server: FakeSecretServer, body: bytes) -> None:
    server.put("hub", token=VALUE)
    server.body = body
    with pytest.raises(SecretManagerUnavailable):
        manager_of(server).read("hub", ["token"])


def test_nothing_listens_and_a_credential_file_is_away(tmp_path: Path) -> None:
    with secret_server() as server:
        server.put("hub", token=VALUE)
        file = tmp_path / "token"
        manager = manager_of(server, token=file_or_value(f"file:{file}", credential_error))
        with pytest.raises(SecretManagerUnavailable, match="cannot be read: No such file"):
            manager.read("hub", ["token"])
        file.write_text(f"{ROOT_TOKEN}\n")
        assert manager.read("hub", ["token"]) == {"token": VALUE}
        file.write_text("hvs.revoked")
        with pytest.raises(SecretRefused):
            manager.read("hub", ["token"])
        away = manager_of(server)
    with pytest.raises(SecretManagerUnavailable, match="does not answer"):
        away.read("hub", ["token"])


def test_a_standby_leads_to_the_active_server_once(server: FakeSecretServer) -> None:
    server.put("hub", token=VALUE)
    with secret_server() as standby:
        standby.active = server.url
        assert manager_of(standby).read("hub", ["token"]) == {"token": VALUE}
        standby.active = standby.url
        with pytest.raises(SecretManagerUnavailable):
            manager_of(standby).read("hub", ["token"])
        standby.active = "https://127.0.0.1:1"
        with pytest.raises(SecretManagerUnavailable, match="another scheme"):
            manager_of(standby).read("hub", ["token"])


def test_only_the_given_authority_is_accepted(tmp_path: Path) -> None:
    def made(name: str) -> GeneratedCertificate:
        home = HomeLayout(tmp_path / name)
        home.root.mkdir(mode=0o700)
        certificate = GeneratedCertificate(home, ("127.0.0.1",))
        certificate.renew(time.time_ns() // 1000)
        return certificate

    one, another = made("one"), made("another").authority
    with secret_server(one.context) as server:
        server.put("hub", token=VALUE)
        assert manager_of(server, ca=one.authority).read("hub", ["token"]) == {"token": VALUE}
        for wrong in (another, ""):
            with pytest.raises(SecretManagerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                manager_of(server, ca=wrong).read("hub", ["token"])
        assert len(server.asked) == 1, "no credential was sent to a server that is not trusted"
