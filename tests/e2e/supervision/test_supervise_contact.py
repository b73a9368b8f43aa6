"""The line to the control plane: away, back elsewhere, forgetful, gone for good."""

import json

import pytest

from e2e.supervision.node import Node
from phalanx.core.jobs.model import NodeOutcome
from phalanx.schemas.wire.supervision import ExitRecord, RanksEndedReport, RanksStartedReport
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

COUNTS = """
    import os, time
    number = 0
    while not os.path.exists("../leave"):
        print(number, flush=True)
        number += 1
        time.sleep(0.005)
"""


def test_the_job_goes_on_while_the_control_plane_is_away_and_nothing_is_lost(tmp_path):
    server_file = tmp_path / "server.json"
    with Node(tmp_path, COUNTS, server_file=str(server_file)) as node:
        server_file.write_text(json.dumps({"url": node.plane.url}))
        pids = node.run().pids
        node.wait_output("5\n")
        node.plane.away()
        node.wait_output("50\n")
        (tmp_path / "leave").touch()
        spool = node.dir / "spool" / "reports.jsonl"
        wait_until(lambda: spool.exists() and "ranks_ended" in spool.read_text())
        record = ExitRecord.model_validate_json((node.dir / "exit.json").read_bytes())
        assert record.ended.outcome is NodeOutcome.SUCCEEDED
        assert node.plane.reports(RanksEndedReport) == []
        node.plane.come_back()
        server_file.write_text(json.dumps({"url": node.plane.url}))
        assert node.ended() == record.ended
        node.release()
        assert node.shipped().decode() == node.output()
        assert node.plane.reports(RanksStartedReport)[0].pids == pids
        assert not spool.exists()


def test_reports_are_sent_again_until_acknowledged(tmp_path):
    with Node(tmp_path, COUNTS) as node:
        node.plane.forget_acks = True
        node.run()
        wait_until(lambda: node.shipped())
        before = node.plane.num_requests
        wait_until(lambda: node.plane.num_requests > before + 2)
        (tmp_path / "leave").touch()
        node.plane.forget_acks = False
        node.ended()
        node.release()
        assert node.shipped().decode() == node.output()
        numbers = [one.seq for one in node.plane.all_reports()]
        assert numbers == list(range(1, len(numbers) + 1))


def test_alone_for_too_long_it_stops_its_ranks_and_leaves(tmp_path):
    script = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
        print("up", flush=True)
        time.sleep(600)
    """
    with Node(tmp_path, script, contact_lost_after_s=0.5) as node:
        node.run()
        node.wait_output("up")
        node.plane.away()
        assert node.process.wait(60) == 0
        assert node.output() == "up\nsaved\n"
        record = ExitRecord.model_validate_json((node.dir / "exit.json").read_bytes())
        assert record.ended.outcome is NodeOutcome.STOPPED
        assert node.marked() == []
        node.plane.come_back()


def test_a_control_plane_that_refuses_the_token_is_no_contact(tmp_path):
    with Node(tmp_path, COUNTS, contact_lost_after_s=1.0) as node:
        node.plane.token = "another"
        assert node.process.wait(60) == 0
