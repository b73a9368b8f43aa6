"""The variables with which a rank sends metrics, and the files that they name."""

import pytest

from phalanx.core.contract.reporting import VARIABLES, ReportingPlace, reporting_variables

pytestmark = pytest.mark.unit


def test_a_token_names_its_place_and_follows_from_the_token_of_the_attempt() -> None:
    place = ReportingPlace(12, 3, 0, 1)
    token = place.token("of-the-attempt")
    assert ReportingPlace.named_by(token) == place
    assert "of-the-attempt" not in token
    others = [ReportingPlace(12, 3, 1, 1), ReportingPlace(12, 3, 0, 0), ReportingPlace(12, 4, 0, 1)]
    # Of a supervisor that was replaced once.
    later = ReportingPlace(12, 3, 0, 1, 1)
    assert ReportingPlace.named_by(later.token("of-the-next")) == later
    marks = {one.token("of-the-attempt").rpartition(".")[2] for one in (place, *others)}
    assert len(marks) == 4
    for text in ("", "12.3.0.1", "12.3.0.1.", "12.3.0.x.ab", "1.2.3.4.5.6.ab", "\u0663.3.0.1.ab"):
        assert ReportingPlace.named_by(text) is None


def test_the_authority_is_named_only_where_there_is_one() -> None:
    plain = reporting_variables("http://host:80/", 7, 3, "t", "/f")
    assert plain["PHALANX_METRICS_URL"] == "http://host:80/api/v1/jobs/7/metrics?rank=3"
    assert plain["KUBEFLOW_TRAINER_SERVER_TOKEN"] == "/f"
    secured = reporting_variables("https://host", 7, 3, "t", "/f", "/ca.pem")
    assert set(secured) - set(plain) == {"PHALANX_METRICS_CA", "KUBEFLOW_TRAINER_SERVER_CA_CERT"}
    assert set(secured) == set(VARIABLES)
