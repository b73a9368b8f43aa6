"""The URL of a job in every answer that describes one: the public one, else that of the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from integration.rig import TOKEN, URL, Rig, open_rig, spec
from phalanx.server.gate import _base_of
from phalanx.server.settings import ApiSettings, Settings
from phalanx.standalone.control_plane import _with_public_url

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


def answers(rig: Rig, host: str) -> dict[str, Any]:
    """Answers of every kind that describe a job, to a client that calls the control plane `host`."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": host}
    with httpx.Client(base_url=URL, transport=rig.transport, headers=headers) as http:

        def ask(method: str, path: str, body: Any = None) -> Any:
            answer = http.request(method, f"/api/v1{path}", json=body)
            assert answer.is_success, answer.text
            return answer.json()

        found = {
            "submit": ask("POST", "/jobs", {"spec": spec(resources=SMALL)})["job"],
            "show": ask("GET", "/jobs/1"),
            "list": ask("GET", "/jobs")["jobs"][0],
            "why": ask("GET", "/jobs/1/why"),
            "provenance": ask("GET", "/jobs/1/provenance"),
            "change": ask("PATCH", "/jobs/1", {"description": "x"}),
            "clone": ask("POST", "/jobs/1/clone", {})["job"],
            "pause": ask("POST", "/jobs/2/stop", {"goal": "pause"}),
            "resume": ask("POST", "/jobs/2/resume", {}),
        }
        array = {"spec": spec(resources=SMALL, array={"indices": "0-1"})}
        found["batch"] = ask("POST", "/jobs/batch", {"jobs": [array]})["jobs"][1]
        after = spec(resources=SMALL, depends_on={"afterok": ["j-1"]})
        waiting = ask("POST", "/jobs", {"spec": after})["job"]
        found["dependency"] = waiting["waits_for"][0]
        ask("PUT", "/projects/default/schedules/nightly", {"spec": spec(), "cron": "0 3 * * *"})
        found["run"] = ask("POST", "/projects/default/schedules/nightly/run")
        found["schedule"] = ask("GET", "/projects/default/schedules/nightly")["last_run"]
        job = {key: one for key, one in spec(resources=SMALL).items() if key != "schema"}
        template = {"schema": 1, "job": job}
        ask("PUT", "/projects/default/templates/tune", {"template": template})
        found["template"] = ask("POST", "/projects/default/templates/tune/submit", {})["jobs"][0]
        return found


def wrong(found: dict[str, Any], base: str) -> dict[str, Any]:
    return {
        name: one.get("url")
        for name, one in found.items()
        if one.get("url") != f"{base}/jobs/{one.get('num') or one['job']}"
    }


def test_without_a_public_url_it_is_that_of_the_request(rig: Rig) -> None:
    assert wrong(answers(rig, "127.0.0.1:1"), URL) == {}
    assert rig.platform.job_url(7) == f"{URL}/jobs/7", "outside of requests it is the own one"


def test_another_name_of_the_control_plane_stays_in_its_answers(rig: Rig) -> None:
    assert wrong(answers(rig, "localhost:99"), "http://localhost:99") == {}


def test_a_public_url_counts_for_every_client_and_its_host_is_served(tmp_path: Path) -> None:
    api = ApiSettings(public_url="https://train.example.org/", max_stream_s=0)
    with open_rig(tmp_path / "home", settings=Settings(api=api)) as rig:
        for host in ("127.0.0.1:1", "train.example.org"):
            with_host = {"Authorization": f"Bearer {TOKEN}", "Host": host}
            with httpx.Client(base_url=URL, transport=rig.transport, headers=with_host) as http:
                assert http.get("/api/v1/jobs").status_code == 200
        assert wrong(answers(rig, "train.example.org"), "https://train.example.org") == {}
        assert rig.platform.job_url(7) == "https://train.example.org/jobs/7"


@pytest.mark.parametrize("url", ["train.example.org", "ftp://x", "https://a/b", "https://a?b", ""])
def test_a_public_url_has_a_scheme_and_a_host_alone(url: str) -> None:
    with pytest.raises(ValueError, match="public_url"):
        ApiSettings(public_url=url)


def test_a_client_of_the_socket_gets_the_url_of_the_port(rig: Rig) -> None:
    headers = Headers({"host": "127.0.0.1"})
    local = {"scheme": "http", "server": ("/run/socket", None)}
    port = {"scheme": "https", "server": ("127.0.0.1", 8443)}
    assert _base_of(local, headers, context=rig.context) == URL
    assert _base_of(port, headers, context=rig.context) == "https://127.0.0.1"


def test_the_url_for_other_machines_is_the_public_one_unless_another_is_set() -> None:
    plain, given = Settings(), Settings(api=ApiSettings(public_url="https://a"))
    assert _with_public_url(plain, None).api.public_url is None
    assert _with_public_url(plain, "http://balancer:7000").api.public_url == "http://balancer:7000"
    assert _with_public_url(given, "http://balancer:7000").api.public_url == "https://a"
