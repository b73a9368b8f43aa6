"""Every search method of ours keeps the contract."""

import pytest

from phalanx.testing.search_methods import CELLS, SearchMethodContract

pytestmark = pytest.mark.integration


class TestRandom(SearchMethodContract):
    method = "random"


class TestQuasiRandom(SearchMethodContract):
    method = "qmc"


class TestGrid(SearchMethodContract):
    method = "grid"
    spaces = (CELLS,)

    def test_results_that_are_not_finite_reach_no_model(self):
        pytest.skip("a grid looks at no result")

    def test_trials_that_all_failed_do_no_harm(self):
        pytest.skip("a grid looks at no result")

    def test_another_process_suggests_the_same(self):
        pytest.skip("tested with the draws of `core.search`")


class TestBayesian(SearchMethodContract):
    method = "bayesian"


class TestAuto(SearchMethodContract):
    method = "auto"


class TestParzen(SearchMethodContract):
    method = "tpe"

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("optuna")
