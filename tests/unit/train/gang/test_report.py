"""The report of a rank: records that cannot be written never reach training as an error."""

import pytest

from phalanx.core.contract.records import MetricRecord
from phalanx.train.gang.report import ReportFile

pytestmark = pytest.mark.unit


def test_a_record_with_a_value_within_itself_is_dropped(tmp_path):
    report = ReportFile(tmp_path / "report", now=lambda: 1)
    values: dict = {}
    values["loss"] = values
    report.write(MetricRecord(step=1, values=values))
    assert report.dropped == 1
    report.close()
