"""Two jobs never share a device, and no device is idle while a job that fits waits."""

import pytest

from support.device_mixes import run_mixes
from support.nvml import fake_driver

pytestmark = pytest.mark.integration


@pytest.fixture
def driver(tmp_path_factory, tmp_path, monkeypatch):
    made = fake_driver(tmp_path_factory, tmp_path)
    made.load(monkeypatch)
    return made


def check(tally):
    assert (tally.shared, tally.unfit, tally.idle) == (0, 0, 0), tally
    assert min(tally.starts, tally.ends, tally.lost, tally.outside, tally.restarts) > 0, tally


def test_no_mix_of_jobs_shares_a_device_or_leaves_one_idle(driver, tmp_path):
    check(run_mixes(driver, tmp_path, range(15)))


def test_without_kept_numbers_a_restart_gives_a_device_to_two_jobs(driver, tmp_path):
    assert run_mixes(driver, tmp_path, range(8), keeps_numbers=False).shared


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_thousand_mixes(driver, tmp_path):
    tally = run_mixes(driver, tmp_path, range(1000))
    print(tally)
    check(tally)
