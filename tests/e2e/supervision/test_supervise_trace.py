"""Ranks find the span of their generation, also after a recovery; the setup command that of the attempt."""

import json

import pytest

from e2e.supervision.node import Node

pytestmark = pytest.mark.e2e
SCRIPT = """
    import os, sys
    print(os.environ["TRACEPARENT"], os.environ["TRACESTATE"])
    sys.exit(os.environ["PHALANX_GENERATION"] == "0")
"""


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_recovered_generation_has_a_trace_of_its_own(tmp_path, warm):
    setup = "echo $TRACEPARENT > ../setup"
    user = {"TRACEPARENT": "of the caller", "TRACESTATE": "other=1"}
    with Node(tmp_path, SCRIPT, warm=warm, env=user, setup=setup) as node:
        trace = node.assignment.gang.trace
        node.run(0)
        assert node.failed(0).exit_code == 1
        node.ended(0)
        node.run(1, restarts=1)
        node.ended(1)
        for generation in (0, 1):
            span = trace.generation(2, generation)
            expected = f"{span.traceparent()} phalanx=j7.a2.g{generation}\n"
            assert node.output(generation=generation) == expected
        assert (tmp_path / "setup").read_text() == trace.attempt(2).traceparent() + "\n"
        headers = node.plane.traceparents
        assert trace.generation(2, 0).traceparent() in headers
        assert trace.generation(2, 1).traceparent() in headers
        assert trace.generation(2, 0).traceparent(sampled=False) in headers


def test_every_line_of_a_supervisor_is_json(tmp_path):
    with Node(tmp_path, SCRIPT, log_format="json") as node:
        trace = node.assignment.gang.trace
        log = tmp_path / "n0" / "supervisor.log"
        node.plane.away()
        node.plane.wait_for(log.read_text)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    for one in lines:
        assert one["service"] == "supervisor" and one["event"] and one["msg"]
        assert (one["job"], one["attempt"], one["node"]) == (7, 2, 0)
        assert one["trace_id"] == trace.root.trace
