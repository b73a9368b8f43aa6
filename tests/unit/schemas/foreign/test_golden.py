"""Each job file in `tests/fixtures/foreign` becomes what its golden file says; every key is treated.

`PHALANX_GOLDEN=write pytest …` writes the golden files again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.documents import read_documents
from phalanx.schemas.foreign.formats import TABLES, convert
from phalanx.schemas.foreign.rules import Conversion, KeyAction
from phalanx.schemas.spec.document import resolved, to_yaml, validate_spec
from unit.schemas.foreign.test_pytorchjob import SCHEMAS, VALUES, leaves, places

pytestmark = pytest.mark.unit
FIXTURES = Path(__file__).parents[3] / "fixtures" / "foreign"
FILES = sorted(one for one in FIXTURES.iterdir() if one.suffix not in (".golden", ".py"))
YAML_FILES = [one for one in FILES if one.suffix in (".yaml", ".yml")]
WRITE = os.environ.get("PHALANX_GOLDEN") == "write"


# Values that a file needs.
VALUES_OF = {"accelerate-fsdp.yaml": {"PROGRAM": "train.py --lr 0.1"}}


def outcome(path: Path, local: bool) -> dict[str, Any]:
    """What became of a file, as plain data."""
    try:
        found = convert(path.read_text(), path.name, VALUES_OF.get(path.name), local)
    except SpecInvalid as error:
        return {"refused": [str(one) for one in error.problems]}
    assert found is not None, f"{path.name} is not told from a job spec"
    if found.problems:
        return {"refused": [str(one) for one in found.problems]}
    return {
        "specs": [one.spec for one in found.all],
        "warnings": [str(one) for part in found.all for one in part.warnings],
    }


@pytest.mark.parametrize("path", FILES, ids=lambda one: one.name)
def test_a_file_becomes_what_its_golden_file_says(path: Path) -> None:
    golden = path.with_name(f"{path.name}.golden")
    found = {"submit": outcome(path, local=False), "local": outcome(path, local=True)}
    if WRITE:
        golden.write_text(yaml.safe_dump(found, sort_keys=False, width=100))
    assert yaml.safe_load(golden.read_text()) == found


@pytest.mark.parametrize("path", FILES, ids=lambda one: one.name)
def test_a_spec_that_is_dumped_and_read_again_is_the_same(path: Path) -> None:
    for local in (False, True):
        with contextlib.suppress(SpecInvalid):
            found = convert(path.read_text(), path.name, VALUES_OF.get(path.name), local)
            assert found is not None
            for one in () if found.problems or found.is_study else found.all:
                spec = validate_spec(one.spec)
                again = yaml.safe_load(to_yaml(resolved(spec)))
                assert validate_spec(again) == spec
                assert convert(to_yaml(resolved(spec)), "again.yaml") is None


def treated(path: Path, text: str, local: bool) -> Conversion | None:
    with contextlib.suppress(SpecInvalid):
        return convert(text, path.name, local=local)
    return None


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda one: one.name)
def test_each_key_of_a_file_has_a_treatment(path: Path) -> None:
    found = treated(path, path.read_text(), local=False)
    if found is None or (found.is_study and found.problems):
        return
    keys = [one.key for part in found.all for one in part.treatments]
    for document in read_documents(path.read_text(), path.name):
        if document.line(()) in {one.line for one in found.treatments if "is no job" in one.text}:
            continue
        for key in document.data:
            assert any(one == key or one.startswith((f"{key}.", f"{key}[")) for one in keys), key


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_change_of_a_file_is_converted_or_refused_with_a_line(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(YAML_FILES))
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one is not None]
    for _ in range(data.draw(st.integers(1, 4))):
        holder, key = data.draw(st.sampled_from(places(documents)))
        with contextlib.suppress(IndexError, KeyError):
            holder[key] = data.draw(VALUES)
    local = data.draw(st.booleans())
    found = treated(path, yaml.safe_dump_all(documents), local)
    if found is None:
        return
    for problem in found.problems:
        assert "line " in problem.path or problem.path.startswith("--set"), problem
    refused = [one for one in found.treatments if one.action is KeyAction.REFUSED]
    assert bool(refused) <= bool(found.problems)
    for one in () if found.problems or found.is_study else found.all:
        with contextlib.suppress(SpecInvalid):
            validate_spec(one.spec)


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("MPIJob", "training-operator-v1/kubeflow.org_mpijobs.yaml"),
        ("TFJob", "training-operator-v1/kubeflow.org_tfjobs.yaml"),
        ("JAXJob", "training-operator-v1/kubeflow.org_jaxjobs.yaml"),
        ("RayJob", "kuberay/ray.io_rayjobs.yaml"),
        ("RayCluster", "kuberay/ray.io_rayclusters.yaml"),
        ("Runtime of a TrainJob", "trainer-v2/trainer.kubeflow.org_clustertrainingruntimes.yaml"),
    ],
)
def test_every_key_of_a_published_schema_has_a_treatment(tool: str, file: str) -> None:
    if not (SCHEMAS / file).exists():
        pytest.skip("the schema of the operator is not here")
    schema = yaml.load((SCHEMAS / file).read_text(), Loader=yaml.CSafeLoader)
    table = dict(TABLES)[tool]
    for version in schema["spec"]["versions"]:
        paths = leaves(version["schema"]["openAPIV3Schema"])
        assert [".".join(path) for path in paths if not table.covers(path)] == []
