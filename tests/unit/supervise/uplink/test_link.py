"""What counts as contact with the control plane, and what does not."""

import http.server
import json
import threading

import pytest

from phalanx.core.contract.job import WarmStart
from phalanx.errors import StoreUnavailable
from phalanx.kit.clock import ManualClock
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.uplink.link import ControlPlaneLink, Outbox, SyncConnection
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit
FULL = {"code": StoreUnavailable.code, "message": "the disk is full"}


def assignment(url):
    gang = gang_contract(1, grace_s=5.0)
    return Assignment(
        gang=gang,
        node_rank=0,
        node_dir="/n",
        workdir="/w",
        cwd="/w",
        command=["x"],
        env={},
        warm=WarmStart(enabled=False, imports=()),
        cpus=1,
        server_url=url,
        token="t",
    )


@pytest.fixture
def server():
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = self.server.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("status", "body", "contact"),
    [
        (503, json.dumps(FULL).encode(), True),
        (503, b"<html>the proxy has lost its server</html>", False),
        (403, json.dumps({**FULL, "code": "permission_denied"}).encode(), False),
        (500, json.dumps({**FULL, "code": "bug"}).encode(), False),
    ],
)
def test_only_a_control_plane_that_cannot_store_is_contact_all_the_same(
    tmp_path, server, status, body, contact
):
    server.answer = (status, body)
    url, clock = f"http://127.0.0.1:{server.server_port}", ManualClock()
    link = ControlPlaneLink(assignment(url), Outbox(tmp_path), clock, lambda orders: None)
    line = SyncConnection(link._address, "t")
    for failures in range(2):
        clock.advance(300)
        assert link._exchange(line, failures, wait_s=0.0, reports=list) == failures + 1
    assert (link.silent_s < 1) is contact
    line.close()
