"""Which Tune search of a job a script begins or continues, and what is kept of it."""

from types import SimpleNamespace

import pytest

from phalanx.train.frameworks.ray import hooks
from phalanx.train.frameworks.ray.searches import KeptSearch, _progress, _unless_over

pytestmark = pytest.mark.unit


def test_a_search_is_found_again_by_its_name_and_folder(tmp_path):
    first = KeptSearch.find(tmp_path, "lr", None, set())
    second = KeptSearch.find(tmp_path, "depth", None, set())
    elsewhere = KeptSearch.find(tmp_path, "lr", "/results", set())
    assert len({first.folder, second.folder, elsewhere.folder}) == 3
    assert KeptSearch.find(tmp_path, "lr", None, set()) == first
    assert KeptSearch.find(tmp_path, "lr", "/results", set()) == elsewhere


def test_another_time_stamp_is_the_same_search_and_another_number_is_not(tmp_path):
    began = KeptSearch.find(tmp_path, "objective_2026-11-23_20-18-11", None, set())
    assert KeptSearch.find(tmp_path, "objective_2026-11-23_21-00-03", None, set()) == began
    assert KeptSearch.find(tmp_path, "objective_2", None, set()) != began
    layers = KeptSearch.find(tmp_path, "layers-12", None, set())
    assert KeptSearch.find(tmp_path, "layers-24", None, set()) != layers


def test_two_searches_of_one_script_stay_two(tmp_path):
    """The second unnamed search of a script does not continue the first one, which runs."""
    first = KeptSearch.find(tmp_path, "objective_2026-11-23_20-00-00", None, set())
    second = KeptSearch.find(tmp_path, "objective_2026-11-23_20-30-00", None, {first.folder})
    assert second.folder != first.folder
    # The next start of the script finds both, in their order.
    assert KeptSearch.find(tmp_path, "objective_2026-11-23_22-00-00", None, set()) == first
    again = KeptSearch.find(tmp_path, "objective_2026-11-23_22-10-00", None, {first.folder})
    assert again == second


def test_a_kept_state_replaces_what_was_written_half(tmp_path):
    search = KeptSearch.find(tmp_path, "lr", None, set())
    search.driver.mkdir()
    assert not search.has_state
    state = search.driver / "experiment_state-S1.json"
    state.write_text("whole")
    (search.driver / "searcher-S0.pkl").write_text("of an earlier start")
    search.keep("S1")
    state.write_text("ha")  # killed while it wrote the next one
    search.unpack()
    assert search.has_state
    assert state.read_text() == "whole"


def controller(*, trials=1, stopped=0, failed=0, checkpoints=()):
    live = [
        SimpleNamespace(storage=SimpleNamespace(current_checkpoint_index=index))
        for index in checkpoints
    ]
    return SimpleNamespace(
        _trials=[None] * trials,
        _stopped_trials=[None] * stopped,
        _failed_trials=[None] * failed,
        _live_trials=live,
    )


@pytest.mark.parametrize(
    "change", [{"trials": 2}, {"stopped": 1}, {"failed": 1}, {"checkpoints": (0, 1)}]
)
def test_each_begin_end_and_save_of_a_trial_is_a_reason_to_keep_the_state(change):
    before = {"checkpoints": (0, 0)}
    assert _progress(controller(**before)) == _progress(controller(**before))
    assert _progress(controller(**before)) != _progress(controller(**{**before, **change}))


class ActorLost(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "status"), [(ActorLost(), "PENDING"), (ValueError("a bug"), "ERROR"), (None, "ERROR")]
)
def test_a_trial_lost_with_its_node_is_not_over_and_one_with_an_error_of_its_own_is(error, status):
    trial = SimpleNamespace(
        status="ERROR",
        checkpoint=None,
        get_pickled_error=lambda: error,
        is_finished=lambda: trial.status == "ERROR",
    )
    trial.set_status = lambda new: setattr(trial, "status", new)
    _unless_over(SimpleNamespace(RayActorError=ActorLost), trial)
    assert trial.status == status


def test_a_script_that_sizes_its_own_cluster_joins_that_of_the_job(monkeypatch, capsys):
    calls = []
    module = SimpleNamespace(init=lambda address=None, **options: calls.append((address, options)))
    hooks._init(module)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    module.init(num_cpus=4, num_gpus=None, namespace="mine")
    assert calls == [(None, {"namespace": "mine"})]
    assert "num_cpus=4 is not used" in capsys.readouterr().err
    module.init(address="local", num_cpus=4)
    monkeypatch.delenv("RAY_ADDRESS")
    module.init(num_cpus=2)
    assert calls[1:] == [("local", {"num_cpus": 4}), (None, {"num_cpus": 2})]
