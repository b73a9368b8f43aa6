"""Jobs of a real platform on a machine with a fake driver: each device is used by one job at a time."""

import json

import pytest

from e2e.platform.harness import BIN, Platform
from support.nvml import LOST, fake_driver
from support.waiting import wait_until

# Seven whole jobs and a restart: what `make test` needs of it is in tests/property/test_devices.py.
pytestmark = [pytest.mark.e2e, pytest.mark.extras]

PROBE = (
    "import json, os, time; out = os.environ['PROBE_OUT'] + '.' + os.environ['RANK']; "
    "seen = os.environ['CUDA_VISIBLE_DEVICES'].split(','); "
    "open(out, 'w').write(json.dumps([seen, os.environ.get('PHALANX_LOCAL_DEVICE')])); "
    "exec(\"while not os.path.exists(os.environ['PROBE_OUT'] + '.go'): time.sleep(0.05)\")"
)
GPUS = [f"GPU-{i:08x}-h100" for i in range(4)]


@pytest.fixture
def machine(tmp_path_factory, tmp_path):
    driver = fake_driver(tmp_path_factory, tmp_path)
    driver.have_h100(4)
    platform = Platform(tmp_path)
    platform.env |= driver.env
    platform.slots = ()
    platform.up()
    yield platform, driver
    platform.down()


def spec(out, slots, per_rank=1, framework="torch"):
    return {
        "name": "probe",
        "run": [str(BIN / "python"), "-c", PROBE],
        "warm": False,
        "framework": framework,
        "resources": {"slots_per_node": slots, "slots_per_rank": per_rank},
        "env": {"PROBE_OUT": str(out), "CUDA_VISIBLE_DEVICES": "0"},
    }


def seen(out, num_ranks):
    """What each rank of a job sees, once all of them have said so."""
    files = [out.parent / f"{out.name}.{rank}" for rank in range(num_ranks)]

    def read():
        return all(file.exists() and file.read_text() for file in files)

    wait_until(read, f"the ranks of {out.name}")
    return [json.loads(file.read_text()) for file in files]


def test_jobs_at_the_same_time_see_different_devices(machine, tmp_path):
    platform, driver = machine
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    first = platform.submit(spec(one, 2))
    assert seen(one, 2) == [[GPUS[:2], "0"], [GPUS[:2], "1"]]
    second = platform.submit(spec(two, 2, framework="none"))
    assert seen(two, 2) == [[[GPUS[2]], "0"], [[GPUS[3]], "0"]]
    # What runs keeps its devices when the control plane starts again without one of them.
    driver.devices[0].error = LOST
    driver.write()
    platform.process.terminate()
    platform.process.wait(60)
    platform.up()
    third = platform.submit(spec(three, 3, per_rank=3))
    (tmp_path / "one.go").touch()
    platform.wait_state(first, "succeeded")
    (tmp_path / "two.go").touch()
    platform.wait_state(second, "succeeded")
    assert seen(three, 1) == [[GPUS[1:], "0"]]
    (tmp_path / "three.go").touch()
    platform.wait_state(third, "succeeded")
    shown = platform.run("nodes", "show", "local").stdout
    assert f"H100 {GPUS[1]}" in shown
    assert "closed: its device is lost" in shown


def test_a_job_for_more_devices_than_there_are_is_refused_at_submit(machine, tmp_path):
    platform, _ = machine
    wanted = spec(tmp_path / "x", 5)
    wanted["resources"]["nodes"] = 1
    with pytest.raises(AssertionError, match=r"the largest .* has 4 slots"):
        platform.submit(wanted)
