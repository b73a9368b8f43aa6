"""Job files of other tools through the command line: real training on this machine, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.cli.test_embedded import Home

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[3] / "examples" / "foreign"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One for all tests here: the control plane that the first verb starts serves the others."""
    folder = tmp_path_factory.mktemp("foreign")
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    one = Home(folder)
    yield one
    for process in one.servers():
        process.terminate()
    psutil.wait_procs(one.servers(), timeout=60)


@pytest.mark.extras
def test_a_pytorchjob_trains_on_this_machine(home: Home) -> None:
    code, out, err = home.run("submit", "pytorchjob.yaml", "--local", "--follow")
    assert code == 0, err
    losses = [float(line.split()[3]) for line in out.splitlines() if "world 2" in line]
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 10
    assert "image dropped: left out by --local" in err


@pytest.mark.extras
def test_master_and_worker_that_differ_train_as_one_world(home: Home) -> None:
    code, out, err = home.run("submit", "pytorchjob-unequal.yaml", "--local", "--follow")
    assert code == 0, err
    losses = [
        float(line.split("loss ")[1].split()[0]) for line in out.splitlines() if "loss " in line
    ]
    assert sum("world 3" in line for line in out.splitlines()) == len(losses) == 20
    assert "image dropped: left out by --local" in err
    assert losses[-1] < losses[0] / 10


def test_a_slurm_script_trains_on_this_machine(home: Home) -> None:
    code, out, err = home.run("submit", "train.sbatch", "--follow")
    assert code == 0, err
    assert sum("world 2" in line for line in out.splitlines()) == 20
    assert "partition" not in err
    assert "line 6: output dropped: output is stored with the job" in err


def test_an_image_that_no_pool_can_run_is_refused_with_its_line(home: Home) -> None:
    lines = (home.root / "pytorchjob.yaml").read_text().splitlines()
    number = next(at for at, line in enumerate(lines, 1) if "image:" in line)
    code, _, err = home.run("submit", "pytorchjob.yaml")
    assert code == 1
    assert f"pytorchjob.yaml, line {number}: image: this platform runs no containers" in err
    assert "`--local` runs the command here" in err


@pytest.mark.extras
def test_an_accelerate_configuration_trains_the_program_after_it(home: Home) -> None:
    code, out, err = home.run("run", "accelerate.yaml", "sums.py", "--", "--steps", "5")
    assert code == 0, err
    assert sum("world 2" in line for line in out.splitlines()) == 5


@pytest.mark.extras
def test_a_skypilot_task_trains_on_this_machine(home: Home) -> None:
    code, out, err = home.run("submit", "skypilot.yaml", "--set", "STEPS=4", "--follow")
    assert code == 0, err
    assert sum("world 2" in line for line in out.splitlines()) == 4


@pytest.mark.extras
def test_stages_of_a_pipeline_depend_on_each_other(home: Home) -> None:
    stages = [
        "{name: pipeline}",
        "name: one\nnum_nodes: 1\nrun: 'true'\n",
        "name: two\nrun: 'true'\n",
    ]
    (home.root / "pipeline.yaml").write_text("\n---\n".join(stages))
    code, out, err = home.run("submit", "pipeline.yaml")
    assert code == 0, err
    first, second = out.split()
    code, out, err = home.run("wait", first, second)
    assert code == 0, err
    _, out, _ = home.run("show", second)
    assert first in out


def test_an_explanation_needs_no_control_plane(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "pytorchjob.yaml", tmp_path)
    alone = Home(tmp_path)
    code, out, err = alone.run("run", "pytorchjob.yaml", "--local", "--explain")
    assert (code, alone.servers()) == (0, []), err
    assert "line 5: metadata.namespace dropped" in out


def test_what_fits_no_file_of_another_tool_is_refused(home: Home) -> None:
    code, _, err = home.run("submit", "pytorchjob.yaml", "--local", "--set", "X=1")
    assert code != 0
    assert "--set X: the file has no such placeholder" in err
    (home.root / "own.yaml").write_text("run: 'true'\n")
    code, _, err = home.run("submit", "own.yaml", "--local")
    assert code != 0
    assert "--local: own.yaml is not a file of another tool" in err


def test_a_search_of_katib_is_checked_as_a_study(home: Home) -> None:
    fixtures = Path(__file__).parents[2] / "fixtures" / "foreign"
    shutil.copy(fixtures / "katib-pytorchjob.yaml", home.root / "katib.yaml")
    shutil.copy(fixtures / "determined-trial.yaml", home.root / "determined.yaml")
    code, out, err = home.run("submit", "katib.yaml", "--local", "--dry-run")
    assert code == 0, err
    assert "random" in out
    assert "line 3: metadata.namespace dropped" in err
    code, out, err = home.run("submit", "katib.yaml", "--explain")
    assert code == 0, err
    assert "spec.objective.objectiveMetricName -> objective.metric" in out
    code, _, err = home.run("submit", "determined.yaml")
    assert code == 1
    assert "determined.yaml, line 2: entrypoint: names a class" in err
