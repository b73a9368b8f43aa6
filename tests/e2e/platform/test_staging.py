"""A job with inputs: copied to the node before its ranks start, found by a variable, named when missing."""

import os
import sys

import pytest

from e2e.platform.harness import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.extras]


def test_ranks_find_a_copy_of_each_input(platform: Platform, tmp_path) -> None:
    far, code = tmp_path / "far", tmp_path / "code"
    far.mkdir()
    code.mkdir()
    (far / "words.txt").write_text("aleph beth")
    (code / "numpy.py").write_text("raise SystemExit('the code of a job is not imported here')")
    (code / "job.py").write_text(
        "import os\npath = os.environ['PHALANX_DATA_TRAIN_SET']\n"
        "print(os.path.realpath(path), open(path + '/words.txt').read())\n"
    )
    spec = {
        "name": "staged",
        "run": f"{sys.executable} job.py",
        "workdir": str(code),
        "resources": {"slots_per_node": 1},
        "data": {"train-set": str(far)},
    }
    jobs = [platform.submit(spec) for _ in range(2)]
    paths = []
    for job in jobs:
        platform.wait_state(job, "succeeded")
        (line,) = [one for one in platform.run("logs", job).stdout.splitlines() if "aleph" in one]
        paths.append(next(word for word in line.split() if word.startswith("/")))
    assert paths[0] == paths[1] and os.path.commonpath([paths[0], far]) != str(far)
    gone = platform.submit({**spec, "data": {"train-set": str(tmp_path / "away")}})
    view = platform.wait_state(gone, "failed")
    assert "data train-set: " in view.failure.message and view.failure.cause == "user_error"
    refused = platform.run("submit", "--dry-run", _file(platform, spec), check=False)
    assert refused.returncode == 1 and "must be an absolute path or a URL" in refused.stderr


def _file(platform: Platform, spec: dict) -> str:
    import json

    file = platform.root / "relative.json"
    file.write_text(json.dumps({"schema": 1, **spec, "data": {"train-set": "far"}}))
    return str(file)
