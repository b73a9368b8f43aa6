"""What people and machines get wrong: one clear message, the right exit code, nothing lost."""

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from e2e.platform.harness import BIN, Platform, kill, probe_spec
from phalanx.schemas.home import HomeLayout
from phalanx.store import open_store
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def said(done: subprocess.CompletedProcess[str]) -> str:
    text = done.stdout + done.stderr
    assert "Traceback (most recent call last)" not in text, text
    return text


def test_missing_script(platform: Platform):
    done = platform.run("run", "nothere.py", "-n", "2", check=False)
    assert done.returncode == 1
    assert "nothere.py: no such file" in said(done)


def test_syntax_error_is_found_before_anything_runs(platform: Platform):
    (platform.root / "bad.py").write_text("def f(:\n")
    before = len(platform.jobs())
    done = platform.run("run", "bad.py", check=False)
    assert done.returncode == 1
    assert "bad.py, line 1: invalid syntax" in said(done)
    assert len(platform.jobs()) == before


def test_a_raising_script_names_rank_error_and_line(platform: Platform):
    (platform.root / "raises.py").write_text("import sys\nraise ValueError('bad lr')\n")
    done = platform.run("run", "raises.py", "-n", "2", check=False)
    assert done.returncode == 100
    text = done.stdout + done.stderr
    assert text.count("ValueError: bad lr") >= 1
    assert "raises.py" in text
    assert "line 2" in text
    assert platform.jobs()[0].restarts == 0  # a mistake of the user's is not tried again


def test_more_ranks_than_slots(platform: Platform):
    (platform.root / "good.py").write_text("pass\n")
    done = platform.run("run", "good.py", "-n", "9", check=False)
    assert done.returncode == 1
    assert "the largest of any pool has 4 slots (got 9)" in said(done)


def test_all_faults_of_a_spec_at_once(platform: Platform):
    spec = platform.root / "faulty.yaml"
    spec.write_text("schema: 1\nrun: x\npriority: 200\nresorces: {nodes: 1}\n")
    text = said(platform.run("submit", spec, check=False))
    assert "did you mean resources?" in text
    assert "priority: must be at most 100 (got 200)" in text


def test_port_in_use(tmp_path: Path):
    other = Platform(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = other.run("up", "--port", port, check=False)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in said(done)


def test_corrupt_database_is_left_as_it_is(tmp_path: Path):
    other = Platform(tmp_path)
    database = HomeLayout(other.home).database_file
    open_store(database).close()
    damaged = b"garbage!" * 64 + database.read_bytes()[512:]
    database.write_bytes(damaged)
    done = other.run("up", check=False)
    assert done.returncode == 1
    assert "phalanx.sqlite is not a database of this platform" in said(done)
    assert database.read_bytes() == damaged


def test_ctrl_c_cancels_saves_and_waits(platform: Platform, tmp_path: Path):
    out = tmp_path / "probe"
    env = {**platform.env, "PROBE_OUT": str(out)}
    script = Path(__file__).with_name("training.py")
    follower = subprocess.Popen(
        [BIN / "phalanx", "run", "-n", "2", script, "--", "--epochs", "50", "--step-s", "0.02"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    platform.wait_steps(5, out)
    follower.send_signal(signal.SIGINT)
    text, _ = follower.communicate(timeout=120)
    assert follower.returncode == 130
    assert "cancelled" in text
    job = platform.jobs()[0]
    assert job.state == "cancelled"
    # It saved on the way out: every completed step is in the checkpoint.
    assert job.progress.checkpoint_step == len(Path(f"{out}.steps").read_text().splitlines())


def test_killing_the_cli_leaves_the_job_running(platform: Platform, tmp_path: Path):
    out = tmp_path / "probe"
    env = {**platform.env, "PROBE_OUT": str(out)}
    script = Path(__file__).with_name("training.py")
    follower = subprocess.Popen(
        [BIN / "phalanx", "run", "-n", "2", script, "--", "--epochs", "3", "--step-s", "0.02"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    platform.wait_steps(5, out)
    follower.kill()
    follower.wait(30)
    assert platform.wait_state(platform.jobs()[0].label, "succeeded").restarts == 0


@pytest.mark.extras
def test_corrupt_checkpoint_falls_back_and_is_reported(platform: Platform, tmp_path: Path):
    """The newest checkpoint loses one bit, then the gang dies: the one before it is taken."""
    out = tmp_path / "probe"
    spec = probe_spec(out, "--epochs=6", "--step-s=0.03")
    spec["checkpoint"] = {"every": "20 steps", "keep": {"last": 50}}
    job = platform.submit(spec)
    store = Path(platform.show(job).checkpoint_dir)

    def committed() -> list[Path]:
        found = [one for one in store.glob("step-*") if (one / "MANIFEST.json").exists()]
        return sorted(found)

    wait_until(lambda: len(committed()) >= 3, "three checkpoints")
    pids = platform.rank_pids(job)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)  # nothing newer may appear in the meantime
    newest = committed()[-1]
    victim = max(newest.rglob("*.tensors"), key=lambda file: file.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    kill(pids[2])
    view = platform.wait_state(job, "succeeded")
    assert view.lineage.num_quarantined == 1
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert "a checkpoint was quarantined" in platform.run("show", job).stdout


@pytest.mark.extras
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="needs a mount namespace of its own: install util-linux, allow user namespaces",
)
def test_full_disk_warns_and_loses_nothing(tmp_path: Path):
    """The home's disk fills up under a running job; when there is room again, all of it is there."""
    home, out = tmp_path / "home", tmp_path / "probe"
    home.mkdir(mode=0o700)
    # The tmpfs is seen by what runs inside the namespace alone. It fills up after the first step: a rank
    # that starts on a full disk cannot report its first steps.
    script = f"""
        set -e
        mount -t tmpfs -o size=16m,mode=700 tmpfs {home}
        {BIN}/phalanx run -n 2 --checkpoint-every 1s {Path(__file__).with_name("training.py")} \
            -- --epochs 12 --step-s 0.02 > {tmp_path}/log 2>&1 &
        follower=$!
        until [ -s {out}.steps ] || ! kill -0 $follower; do sleep 0.1; done
        until grep -q 'nothing is lost' {tmp_path}/log || ! kill -0 $follower; do
            head -c 16m /dev/zero >> {home}/ballast 2>/dev/null || true
            sleep 0.1
        done
        mount -o remount,size=64m {home}
        wait $follower
        {BIN}/phalanx show j-1 --json
        kill $({BIN}/python -c 'import json; print(json.load(open("{home}/server.json"))["pid"])')
    """
    env = {**os.environ, "PHALANX_HOME": str(home), "PROBE_OUT": str(out), "NO_COLOR": "1"}
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, log + done.stderr
    assert "disk is full" in log
    assert "Traceback" not in log
    view = json.loads(done.stdout)
    assert view["state"] == "succeeded"
    assert (view["lineage"]["missed"], view["lineage"]["duplicated"]) == (0, 0)
    assert out.exists()


@pytest.mark.extras
def test_a_package_that_does_not_exist(platform: Platform):
    job = platform.submit(
        {
            "run": f"{BIN / 'python'} -c pass",
            "warm": False,
            "python": {"packages": ["tinypkg==2.0"], "installer": "pip", "index_url": "none"},
        }
    )
    assert platform.run("wait", job, check=False).returncode == 100
    view = platform.show(job)
    assert (view.state, view.restarts) == ("failed", 0)
    reason = (
        "the Python packages cannot be installed: No matching distribution found for tinypkg==2.0"
    )
    for verb in ("show", "why"):
        assert reason in " ".join(said(platform.run(verb, job)).split()), verb
    assert "from versions: none" in platform.run("logs", job).stdout
