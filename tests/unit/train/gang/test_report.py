"""The report of a rank: records that cannot be written never reach training as an error."""

import pytest

from phalanx.core.contract import records
from phalanx.core.contract.records import MetricRecord
from phalanx.train.gang.report import ReportFile, report_to

pytestmark = pytest.mark.unit


def test_a_record_with_a_value_within_itself_is_dropped(tmp_path):
    report = ReportFile(tmp_path / "report", now=lambda: 1)
    values: dict = {}
    values["loss"] = values
    report.write(MetricRecord(step=1, values=values))
    assert report.dropped == 1
    report.close()


def test_two_parts_of_a_script_that_report_lose_no_record(tmp_path):
    path = tmp_path / "report"
    first, second = report_to(path, lambda: 1), report_to(path, lambda: 1)
    for step, one in enumerate((first, second, first)):
        one.write(MetricRecord(step=step, values={"loss": 0.5}))
    data = path.read_bytes()
    length = records.committed_length(data)
    found = records.decode(data[records.HEADER_BYTES : records.HEADER_BYTES + length])
    assert [one["step"] for _, one in found] == [0, 1, 2]
    first.close()
    fresh = report_to(path, lambda: 1)
    assert fresh is not first
    fresh.close()
