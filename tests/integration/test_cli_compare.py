"""`phalanx compare`, and curves of many jobs as bytes."""

from __future__ import annotations

import csv
import io
import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from integration.rig import TOKEN, URL, Rig
from phalanx.cli.app import app
from phalanx.cli.verbs import metrics
from phalanx.core.contract.records import MetricPoint
from phalanx.errors import NotFound, ServerError, UserError
from phalanx.schemas.wire.curve_bytes import SERIES_TYPE, decode_curves
from phalanx.sdk import PhalanxClient
from phalanx.store.metrics import arrivals

pytestmark = pytest.mark.integration


@pytest.fixture
def two(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Two jobs with losses; the second one has a value that is not finite."""
    monkeypatch.setattr(metrics, "connected", lambda ctx: nullcontext(rig.client))
    nums = rig.submit(name="small"), rig.submit(name="large")
    for num, values in zip(nums, ((3.0, 2.0, 1.0), (4.0, math.inf, 0.5)), strict=True):
        points = [
            MetricPoint(0, step, step, {"loss": value, "data_wait_fraction": 0.1})
            for step, value in enumerate(values)
        ]
        rig.store.transact(lambda tx, n=num, p=points: arrivals.add_points(tx, (n, 1, 0), p))
    return nums


def compare(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words], catch_exceptions=False)


def test_a_row_for_each_metric_and_job_in_the_order_that_was_given(two: tuple[int, int]) -> None:
    first, second = two
    done = compare(f"j-{second}", f"j-{first}")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0][:4] == ["METRIC", "JOB", "NAME", "STEP"]
    # Metrics that the platform measures are shown when they are named.
    assert [row[:7] for row in rows[1:]] == [
        ["loss", f"j-{second}", "large", "2", "0.5", "0.5", "4"],
        ["loss", f"j-{first}", "small", "2", "1", "1", "3"],
    ]
    assert "data_wait_fraction" in compare(f"j-{first}", "--name", "data_wait_fraction").stdout


def test_points_as_csv_and_json(two: tuple[int, int], tmp_path: Path) -> None:
    first, second = two
    compare(f"j-{first}", f"j-{second}", "--csv", str(tmp_path / "curves.csv"))
    text = compare(f"j-{first}", f"j-{second}", "--csv", "-").stdout
    assert (tmp_path / "curves.csv").read_text() == text
    found = list(csv.DictReader(io.StringIO(text)))
    assert [(one["job"], one["step"], one["value"]) for one in found] == [
        (str(first), "0", "3.0"),
        (str(first), "1", "2.0"),
        (str(first), "2", "1.0"),
        (str(second), "0", "4.0"),
        (str(second), "1", ""),
        (str(second), "2", "0.5"),
    ]
    shown = json.loads(compare(f"j-{second}", "--json").stdout)
    assert shown[0]["values"] == [4.0, None, 0.5] and shown[0]["job"] == second


def test_wrong_jobs_and_too_many_metrics_are_refused(two: tuple[int, int]) -> None:
    with pytest.raises(NotFound, match="99"):
        compare("j-99")
    names = [word for number in range(21) for word in ("--name", f"m{number}")]
    with pytest.raises(UserError, match="21 metrics are too many"):
        compare(f"j-{two[0]}", *names)


def test_the_bytes_have_what_the_json_has(rig: Rig, two: tuple[int, int]) -> None:
    params = {"job": list(two), "name": ["loss", "data_wait_fraction"]}
    head = {"Authorization": f"Bearer {TOKEN}"}
    plain = rig.client._http.get("/api/v1/metrics", params=params, headers=head)
    binary = rig.client._http.get(
        "/api/v1/metrics", params=params, headers=head | {"Accept": SERIES_TYPE}
    )
    assert binary.headers["Content-Type"] == SERIES_TYPE
    assert plain.headers["Content-Type"] == "application/json"
    assert plain.headers["Vary"] == binary.headers["Vary"] == "Accept"
    found = decode_curves(binary.content)
    assert found.model_dump(mode="json") == plain.json()
    assert len(binary.content) % 8 == 0  # steps and values are aligned for typed arrays
    assert rig.client.compare_metrics(list(two), ["loss", "data_wait_fraction"]) == found


@pytest.mark.parametrize("cut", [0, 3, 7, 20, -8, -1])
def test_bytes_that_are_cut_off_are_refused(rig: Rig, two: tuple[int, int], cut: int) -> None:
    params = {"job": list(two), "name": ["loss"]}
    whole = rig.client._http.get(
        "/api/v1/metrics", params=params, headers={"Accept": SERIES_TYPE}
    ).content
    with pytest.raises(ValueError, match="curves"):
        decode_curves(whole[:cut])
    with pytest.raises(ValueError, match="bytes behind"):
        decode_curves(whole + b"\0" * 8)


def test_an_answer_of_something_else_is_one_clear_error() -> None:
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"PHC\x01", headers={"Content-Type": SERIES_TYPE})

    with (
        PhalanxClient(URL, TOKEN, transport=httpx.MockTransport(answer)) as client,
        pytest.raises(ServerError, match="not one of a Phalanx server"),
    ):
        client.compare_metrics([1], ["loss"])
