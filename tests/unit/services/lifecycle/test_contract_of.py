"""The contract of a stored job: as it was stored, or from the spec of a job of an older release."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.core.codec import encode
from phalanx.errors import LaunchError, SpecInvalid
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.testing.stores import facts

SPECS: list[dict[str, Any]] = [
    {"run": "python train.py", "resources": {"slots_per_node": 2}},
    {
        "name": "resnet",
        "run": ["python", "train.py", "--lr", "0.1"],
        "resources": {"nodes": 2, "slots_per_node": 4},
        "env": {"SEED": "7"},
        "checkpoint": {"every": "500 steps", "keep": {"last": 3}, "compress": "zstd"},
        "training": {"precision": "bf16"},
        "grace": "90s",
    },
]


@pytest.mark.parametrize("body", SPECS)
def test_a_job_without_a_contract_gets_that_of_its_spec(body: dict[str, Any]) -> None:
    spec = validate_spec(body)
    old = facts(spec=json.loads(json.dumps(resolved(spec))), contract=None)
    assert contract_of(old) == spec.to_contract()


@pytest.mark.parametrize("body", SPECS)
def test_a_stored_contract_is_read_back_and_the_spec_is_not(body: dict[str, Any]) -> None:
    contract = validate_spec(body).to_contract()
    stored = json.loads(json.dumps(encode(contract)))
    assert contract_of(facts(spec={}, contract=stored)) == contract


def test_an_unreadable_spec_or_contract_is_named() -> None:
    with pytest.raises(SpecInvalid):
        contract_of(facts(spec={"run": 1}, contract=None))
    with pytest.raises(LaunchError, match="stored contract cannot be read"):
        contract_of(facts(spec={}, contract={"roles": [{"name": "worker"}]}))
