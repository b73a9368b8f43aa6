"""Secrets that are planted wherever a client can put them, and a search of all that is kept or shown."""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from integration.rig import TOKEN, URL, Rig, open_rig, sample_path, spec
from phalanx.core.contract.credentials import credentials_in
from phalanx.errors import PlatformError, SpecInvalid
from phalanx.schemas.api.jobs import ChangeRequest, CloneRequest, SubmitRequest
from phalanx.schemas.api.schedules import PutScheduleRequest
from phalanx.schemas.api.studies import SubmitStudyRequest
from phalanx.server.settings import ApiSettings, LoginSettings, Settings
from phalanx.services.lifecycle import admission, submit
from phalanx.store.schema import metadata
from support.identity_provider import CLIENT, SECRET, LocalProvider, local_provider

pytestmark = pytest.mark.integration

GITHUB = "ghp_" + "Zz19" * 9
AWS = "AKIA" + "QWERTYUIOPASDFGH"
VALUES = {
    "caller": "planted-in-the-caller",
    "env": "planted-in-env-of-the-job",
    "role": "planted-in-env-of-a-role",
    "shape": "glpat-" + "planted0" * 3,
    "project": "planted-in-a-project-secret",
    "whole": "planted-in-a-platform-secret",
    "study": "planted-in-env-of-a-study",
}
# Files of the home that hold secrets by design, each of mode 0600.
KEPT = {"token", "server.json", "key", "secrets.key", "secrets.json"}


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[tuple[Rig, LocalProvider]]:
    """A control plane with an identity provider, and secrets in every place that takes them."""
    with local_provider(lambda: 0.0) as provider:
        file = tmp_path / "client"
        file.write_text(SECRET)
        login = LoginSettings(
            issuer=provider.url, client_id=CLIENT, client_secret=f"file:{file}", provider_name="E"
        )
        settings = Settings(login=login, api=ApiSettings(max_stream_s=0))
        with open_rig(tmp_path / "home", settings=settings) as rig:
            provider.now_s = lambda: rig.clock.now() / 1e6
            yield rig, provider


def stored(rig: Rig) -> Iterator[tuple[str, str]]:
    """Every row of every table, as text."""
    for name, table in metadata.tables.items():
        rows = rig.store.view(lambda tx, wanted=table: list(tx.conn.execute(select(wanted))))
        yield from ((f"table {name}", repr(tuple(row))) for row in rows)


def shown(rig: Rig) -> Iterator[tuple[str, str]]:
    """The answer of every GET route, for every job."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    nums = [one.num for one in rig.client.jobs(limit=100).jobs]
    with httpx.Client(base_url=URL, transport=rig.transport, headers=headers) as http:
        for method, route in rig.routes():
            if method != "GET":
                continue
            for num in nums if "{num}" in route else [0]:
                path = sample_path(route.replace("{num}", str(num)))
                answer = http.get(path, params={"limit": 1000} if path.endswith("events") else None)
                assert answer.status_code < 500, path
                yield f"GET {path}", answer.text + str(dict(answer.headers))


def kept(rig: Rig) -> Iterator[tuple[str, str]]:
    """Every file of the home but those that hold secrets by design."""
    for path in rig.platform.home.root.rglob("*"):
        if path.is_file() and path.name not in KEPT:
            yield f"file {path.name}", path.read_bytes().decode("latin-1")
        elif path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def found(places: Iterator[tuple[str, str]], secrets: dict[str, str]) -> set[str]:
    """Which secret is in which place."""
    return {
        f"{name} in {place}"
        for place, text in places
        for name, one in secrets.items()
        if one in text
    }


def plant(rig: Rig, provider: LocalProvider) -> dict[str, str]:
    """Put secrets where they belong, by every request that takes them; returns all of them."""
    client, secrets = rig.client, dict(VALUES)
    role = {"run": ["b"], "nodes": 1, "slots_per_node": 1, "env": {"R_TOKEN": VALUES["role"]}}
    body = spec(
        env={"JOB_TOKEN": VALUES["env"], "PLAIN": VALUES["shape"]},
        roles={"second": role},
        secrets=["OF_PROJECT", "OF_ALL"],
    )
    client.secrets.set("OF_PROJECT", VALUES["project"])
    client.secrets.set("OF_ALL", VALUES["whole"], None)
    request = SubmitRequest(
        spec=body, kind="run", caller_cwd="/", caller_env={"DB_PASSWORD": VALUES["caller"]}
    )
    client.submit(request, key="a-key-of-the-caller")
    rig.turn()
    secrets["attempt"] = rig.supervisor(1).token
    one = rig.supervisor(1)
    one.ready()
    one.started()
    client.ask_stacks(1)
    study = {
        "kind": "study",
        "name": "lr",
        "objective": {"metric": "loss"},
        "search": {"method": "grid", "seed": 1},
        "space": {"lr": {"values": [0.1]}},
        "job": {"run": ["t", "${params.lr}"], "env": {"S_TOKEN": VALUES["study"]}},
    }
    client.studies.submit(SubmitStudyRequest(spec=study, owner="ada"))
    made = client.create_token("ci", ["read"])
    secrets["token"], secrets["rotated"] = made.token, client.rotate_token(made.view.id).token
    signed = provider.id_token

    def remembered(grant: Any) -> str:
        secrets["id token"] = signed(grant)
        return secrets["id token"]

    provider.id_token = remembered  # type: ignore[method-assign]
    begun = client.accounts.start_device_login()
    provider.confirm(begun.user_code, sub="s", preferred_username="ada")
    login = client.accounts.finish_login(begun.login).token
    assert login is not None
    secrets |= {"login": login.token, "client": SECRET, "access": "access-of-the-provider"}
    # Requests that are denied are in the audit log.
    denied = {"Authorization": "Bearer phx_00000000_" + "ab" * 20}
    secrets["wrong"] = "ab" * 20
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        assert http.get("/api/v1/jobs", headers=denied).status_code == 401
        assert http.post("/api/v1/jobs", headers=denied, json={}).status_code == 401
        assert http.get(f"/api/v1/jobs?token={'ab' * 20}").status_code == 401
    return secrets


def test_planted_secrets_are_found_nowhere(
    planted: tuple[Rig, LocalProvider], caplog: pytest.LogCaptureFixture
) -> None:
    rig, provider = planted
    caplog.set_level("DEBUG", "phalanx")
    secrets = plant(rig, provider)
    refused(rig)
    secrets |= {"github": GITHUB, "aws": AWS}
    everywhere = (*stored(rig), *shown(rig), *kept(rig), ("the log", caplog.text))
    assert {place.split()[0] for place, _ in everywhere} >= {"table", "GET", "the"}
    assert found(iter(everywhere), secrets) == set()
    assert len(secrets) == 17 and len(everywhere) > 100


def test_the_search_finds_what_is_not_withheld(
    planted: tuple[Rig, LocalProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the classifier and the check, tables and answers hold what was planted."""
    rig, _ = planted
    monkeypatch.setattr("phalanx.core.contract.secrecy.is_secret", lambda name, value="": False)
    monkeypatch.setattr("phalanx.core.contract.secrecy.redacted", lambda text: text)
    monkeypatch.setattr(submit, "plain_credentials", lambda spec: [])
    rig.submit(env={"JOB_TOKEN": VALUES["env"]}, run=["train", GITHUB])
    wanted = {"env": VALUES["env"], "github": GITHUB}
    assert {one.partition(" in ")[2] for one in found(stored(rig), wanted)} >= {"table jobs"}
    assert found(shown(rig), wanted) >= {
        "github in GET /api/v1/jobs/1",
        "env in GET /api/v1/jobs/1",
    }


PLACES: dict[str, dict[str, Any]] = {
    "name": {"name": GITHUB},
    "description": {"description": f"uses {GITHUB}"},
    "labels.team": {"labels": {"team": GITHUB}},
    "labels[0] (the name)": {"labels": {GITHUB: "x"}},
    "run[2]": {"run": ["python", "train.py", f"--token={GITHUB}"]},
    "run": {"run": f"curl -H 'Authorization: {GITHUB}' x"},
    "setup": {"setup": f"export AWS_ACCESS_KEY_ID={AWS}"},
    "data.set": {"data": {"set": f"https://example.org/set?key={AWS}"}},
    "metrics": {"metrics": f"{GITHUB} {{loss}}"},
    "roles.second.run": {
        "roles": {"second": {"run": f"x {GITHUB}", "nodes": 1, "slots_per_node": 1}}
    },
}


def refused(rig: Rig) -> None:
    """Every request with a credential in the command is refused, and named by its place."""
    client, bad = rig.client, spec(run=["x", GITHUB])
    said = r"run\[1\]: contains a GitHub token, which would be stored and shown"
    ways = [
        lambda: client.submit(SubmitRequest(spec=bad)),
        lambda: client.submit(SubmitRequest(spec=bad), key="an-idempotency-key"),
        lambda: client.submit_batch([SubmitRequest(spec=bad | {"array": "0-1"})]),
        lambda: client.clone(1, CloneRequest(set={"run": ["x", GITHUB]}, secrets=dict(VALUES))),
        lambda: client.schedules.put("s", PutScheduleRequest(spec=bad, cron="0 * * * *")),
        lambda: client.templates.put("t", {"schema": 1, "job": {"run": ["x", GITHUB]}}),
        lambda: client.studies.submit(
            SubmitStudyRequest(
                spec={
                    "kind": "study",
                    "name": "s",
                    "objective": {"metric": "loss"},
                    "space": {"lr": {"values": [0.1]}},
                    "job": {"run": ["${params.lr}", GITHUB]},
                },
            )
        ),
    ]
    for way in ways:
        with pytest.raises(PlatformError, match=said) as caught:
            way()
        assert GITHUB not in str(caught.value)
    with pytest.raises(SpecInvalid, match=r"labels\.x: contains an AWS access key id"):
        client.change(1, ChangeRequest(labels={"x": AWS}))


@pytest.mark.parametrize("place", PLACES)
def test_a_credential_of_an_exact_form_is_refused_with_its_place(rig: Rig, place: str) -> None:
    wanted = spec(**PLACES[place])
    with pytest.raises(SpecInvalid) as caught:
        rig.client.submit(SubmitRequest(spec=wanted))
    assert [one.path for one in caught.value.problems] == [place]
    assert "phalanx secrets set" in caught.value.problems[0].message
    assert GITHUB not in json.dumps(str(caught.value)) and rig.client.jobs().jobs == []
    assert admission.plain_credentials(spec(run=["x", "AKIAIOSFODNN7EXAMPLE", "hf_hub"])) == []
    # Variables are kept apart, and reach the ranks.
    assert not list(credentials_in({"env": {"T": GITHUB}}))
    with contextlib.suppress(SpecInvalid):
        rig.client.submit(SubmitRequest(spec=spec(env={"T": GITHUB})))
    assert rig.client.jobs().jobs[0].num == 1
