"""Problems that a server finds in the spec of another tool's file name the lines of the file."""

from pathlib import Path

import pytest

from phalanx.cli.client.foreign_specs import located
from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.foreign.formats import convert

pytestmark = pytest.mark.unit
TEXT = """apiVersion: batch/v1
kind: Job
metadata: {name: one}
spec:
  template:
    spec:
      containers:
        - name: c
          image: example/a:1
          command: [python, a.py]
"""


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("image", "job.yaml, line 9: image"),
        ("run[1]", "job.yaml, line 7: run[1]"),
        ("kubernetes.labels", "job.yaml: kubernetes.labels"),
    ],
)
def test_a_key_has_the_line_that_it_comes_from(path: str, shown: str) -> None:
    found = convert(TEXT, "job.yaml")
    assert found is not None
    error = SpecInvalid([Problem(path, "is wrong", "x")], "try another")
    made = located(error, found, Path("/a/job.yaml"), local=False)
    (problem,) = made.problems
    assert (problem.path, problem.message) == (shown, "is wrong")
    wanted = "try another" if path.startswith("run") else "`--local` runs"
    assert str(made.hint).startswith(wanted)
    kept = located(error, found, Path("/a/job.yaml"), local=True)
    assert kept.hint == "try another"
