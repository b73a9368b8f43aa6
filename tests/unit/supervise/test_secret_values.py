"""Secrets of a supervisor that does not see the home: asked for over its link, told when refused."""

import http.server
import json
import threading

import pytest

from phalanx.errors import NotFound
from phalanx.launch import secret_files
from phalanx.supervise.secret_values import secret_values

pytestmark = pytest.mark.unit


@pytest.fixture
def control_plane():
    """Answers with what is scripted, in order, and remembers what was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append((self.path, self.headers["Authorization"]))
            status, body = server.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def assignment(server=None):
    return {
        "gang": {"job": {"num": 7}, "attempt": 2},
        "node_rank": 1,
        "secrets": ["KEY"],
        "server_url": "http://127.0.0.1:1" if server is None else _url(server),
        "token": "opensesame",
    }


def _url(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_a_node_without_the_home_asks_its_control_plane(control_plane):
    control_plane.answers = [(503, {}), (200, {"values": {"KEY": "hush", "OTHER": "x"}})]
    assert secret_values(assignment(control_plane), lambda _: None) == {"KEY": "hush"}
    path = "/api/v1/supervisors/secrets?job=7&attempt=2&node_rank=1&incarnation=0"
    assert control_plane.asked == [(path, "Bearer opensesame")] * 2


def test_a_refusal_ends_at_once_and_says_why(control_plane):
    control_plane.answers = [(403, {"code": "x", "message": "not the token of that supervisor"})]
    with pytest.raises(NotFound, match="not the token of that supervisor"):
        secret_values(assignment(control_plane), lambda _: None)


def test_a_missing_value_is_named(control_plane):
    control_plane.answers = [(200, {"values": {"OTHER": "hush"}})]
    with pytest.raises(NotFound, match="KEY") as raised:
        secret_values(assignment(control_plane), lambda _: None)
    assert "hush" not in str(raised.value)


def test_own_variables_of_the_job_come_from_their_file_or_over_the_link(control_plane, tmp_path):
    own = {"own_secrets": {"DB_PASS": "caller"}, "secrets": []}
    file = tmp_path / "secrets.json"
    secret_files.store_own(file, {"caller": {"DB_PASS": "near"}})
    found = secret_values(assignment(control_plane) | own | {"own_secrets_file": str(file)})
    assert found == {"DB_PASS": "near"} and control_plane.asked == []
    control_plane.answers.append((200, {"values": {"DB_PASS": "far", "KEY": "k"}}))
    found = secret_values(assignment(control_plane) | own | {"secrets": ["KEY"]})
    assert found == {"DB_PASS": "far", "KEY": "k"}
    assert secret_values({}) == {}
