"""Whatever a rank says can be sent, written down and stored."""

import json

import pytest

from phalanx.core.contract.records import from_json
from phalanx.core.gang.failures import Failure, from_error_file
from phalanx.core.gang.stalls import StallPolicy, StallWatch
from phalanx.core.reasons import Cause
from phalanx.kit.text import replace_unencodable
from phalanx.schemas.wire.supervision import (
    ExitRecord,
    FailureReport,
    Heartbeat,
    RanksEndedReport,
    RankStacks,
    StacksReport,
    SyncRequest,
)
from phalanx.supervise.ranks.records import GenerationRecords

pytestmark = pytest.mark.unit
ODD = "b\udce4d\0.txt"  # a file name in Latin-1, as Python shows it, and a zero byte
PLAIN = "b\ufffdd\ufffd.txt"


def round_trip(*reports, phase=""):
    request = SyncRequest(
        job=1,
        attempt=1,
        node_rank=0,
        sent_at=0,
        reports=list(reports),
        heartbeat=Heartbeat(phase=phase),
    )
    return SyncRequest.model_validate_json(request.model_dump_json())


def test_an_exception_that_quotes_an_odd_file_name_is_reported():
    body = {"message": f"ValueError: {ODD}", "extraInfo": {"py_callstack": f"in {ODD}"}}
    words = from_error_file(json.dumps({"message": body}))
    failure = FailureReport.from_core(
        Failure(Cause.RANK_CRASH, 0, 0, 1, words.message, traceback=words.traceback)
    )
    ended = RanksEndedReport(seq=1, generation=0, outcome="failed", port=1, failure=failure)
    (report,) = round_trip(ended, phase=ODD).reports
    assert report.failure.message == PLAIN and report.failure.traceback == f"in {PLAIN}"
    record = ExitRecord(attempt=1, node_rank=0, released=False, ended=ended)
    assert ExitRecord.model_validate_json(record.model_dump_json()) == record


def test_what_ranks_write_into_their_reports_is_sent():
    sent = []
    here = GenerationRecords(
        0, {}, lambda make: sent.append(make(len(sent) + 1)), StallWatch(StallPolicy(), 0.0)
    )
    for record in (
        {"k": "warn", "message": ODD, "t": 1},
        {"k": "checkpoint", "step": 1, "path": ODD, "t": 1, "metrics": {ODD: 0.5}},
        {"k": "quarantined", "path": ODD, "why": ODD, "t": 1},
        {"k": "removed", "path": ODD, "t": 1},
        {"k": "restored", "path": ODD, "t": 1},
        {"k": "guard", "step": 1, "what": ODD, "origin": ODD, "action": ODD, "t": 1},
    ):
        here.add(0, *from_json(record))
    stacks = StacksReport(
        seq=9, generation=0, request=1, at=1, ranks=[RankStacks(rank=0, text=ODD)]
    )
    found = round_trip(*sent, stacks).reports
    assert len(found) == 7 and found[1].metrics == {PLAIN: 0.5}
    assert "\udce4" not in str(found) and found[0].message == PLAIN


def test_ordinary_text_stays_as_it_is():
    text = "größer, 大きい, 🙂\n\tend"
    assert replace_unencodable(text) == text
