"""Settings: from the environment, from flags above it, and mistakes that are named."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from phalanx.core.scheduling import NAMED_POLICIES, PlannerConfig
from phalanx.errors import SpecInvalid
from phalanx.server.app import policy_of
from phalanx.server.settings import SchedulerSettings, Settings, read_settings
from phalanx.services.caches.row_cache import PlanningPolicy
from phalanx.sim.model import SimulationSetup
from phalanx.standalone.control_plane import ControlPlaneOptions, _settings

pytestmark = pytest.mark.unit


def test_ages_are_written_as_people_write_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PHALANX__RETENTION__LOGS", "30d")
    assert read_settings().retention.logs == 30 * 86400
    setup = ControlPlaneOptions(tmp_path, keep_metrics_s=7200.0, idle_exit_s=3.0)
    found = _settings(setup)
    assert (found.retention.logs, found.retention.metrics) == (30 * 86400, 7200)
    assert found.idle_exit_s == 3
    assert _settings(ControlPlaneOptions(tmp_path, keep_logs_s=3600.0)).retention.logs == 3600


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PHALANX__LOOPS__POLL_TICK_S", "soon", "PHALANX__LOOPS__POLL_TICK_S"),
        ("PHALANX__LOOPS__POL_TICK_S", "1", "PHALANX__LOOPS__POL_TICK_S"),
        ("PHALANX__LOPS__POLL_TICK_S", "1", "did you mean PHALANX__LOOPS"),
        ("PHALANX__LOOPS__POL_TICK_S", "1", "did you mean PHALANX__LOOPS__POLL_TICK_S?"),
        ("PHALANX__SCHEDULER__HOLE_TTL_S", "1", "called PHALANX__SCHEDULER__RESERVATION_TTL_S"),
        ("phalanx__scheduler__hole_ttl_s", "1", "called PHALANX__SCHEDULER__RESERVATION_TTL_S"),
        ("PHALANX__IDLE_EXIT_S__NOW", "1", "there is no such setting"),
        ("PHALANX__API", '{"wait": 3}', "PHALANX__API__WAIT: there is no such setting"),
        ("PHALANX__API__ALLOWED_HOSTS", "example.org", "JSON"),
        ("PHALANX__RETENTION__LOGS", "30 moons", "moons"),
        ("PHALANX__RETENTION__LOGS", "10m", "3600"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    with pytest.raises(SpecInvalid) as caught:
        read_settings()
    assert said in str(caught.value)


def test_the_shipped_policy_is_the_default_of_the_planner_and_the_simulator():
    assert policy_of(Settings().scheduler).config == PlannerConfig()
    assert PlanningPolicy().config == PlannerConfig() == SimulationSetup(()).config
    assert policy_of(Settings().scheduler).half_life_s == SimulationSetup(()).half_life_s


@pytest.mark.parametrize("value", ["never", "inf"])
def test_time_sharing_among_equals_can_be_switched_off(monkeypatch, value):
    monkeypatch.setenv("PHALANX__SCHEDULER__PEER_HYSTERESIS", value)
    assert policy_of(read_settings().scheduler).config == PlannerConfig(hysteresis=math.inf)


def test_every_named_policy_can_be_selected_and_a_given_setting_replaces_its_constant(monkeypatch):
    assert get_args(SchedulerSettings.model_fields["policy"].annotation) == tuple(NAMED_POLICIES)
    for name, config in NAMED_POLICIES.items():
        monkeypatch.setenv("PHALANX__SCHEDULER__POLICY", name)
        assert policy_of(read_settings().scheduler).config == config
    monkeypatch.setenv("PHALANX__SCHEDULER__POLICY", "fifo")
    monkeypatch.setenv("PHALANX__SCHEDULER__PEER_HYSTERESIS", "2.5")
    monkeypatch.setenv("PHALANX__SCHEDULER__MIN_RUN_S", "1200")
    found = policy_of(read_settings().scheduler).config
    assert found == replace(NAMED_POLICIES["fifo"], hysteresis=2.5, min_run_s=1200.0)
    monkeypatch.setenv("PHALANX__SCHEDULER__POLICY", "fastest")
    with pytest.raises(SpecInvalid, match="throughput"):
        read_settings()
