"""Digests of specs outlive the operator that made them: they are labels of running jobs."""

from __future__ import annotations

import pytest

from phalanx.operator.kinds import Object
from phalanx.operator.submission import KINDS

pytestmark = pytest.mark.unit
POD = {"spec": {"containers": [{"name": "c", "image": "i", "command": ["x"]}]}}
ROLE = {"replicas": 2, "template": POD}
SPECS: dict[str, Object] = {
    "PyTorchJob": {
        "runPolicy": {"suspend": True, "backoffLimit": 3},
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3},
        "pytorchReplicaSpecs": {"Worker": ROLE},
    },
    "JobSet": {"suspend": True, "replicatedJobs": [{"name": "a", "replicas": 2}]},
    "Job": {"parallelism": 2, "completions": 2, "template": POD},
}


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("PyTorchJob", "2-51675ad012da0c2a"),
        ("JobSet", "2-cebaab6135072092"),
        ("Job", "2-dcff647c53a95b82"),
    ],
)
def test_a_change_of_what_a_digest_is_made_of_raises_its_version(kind: str, digest: str) -> None:
    """Where this fails, raise `DIGEST_VERSION` and write the new values: updates tell no false change."""
    assert KINDS[kind].spec_digest({"spec": SPECS[kind]}) == digest


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_digest_of_another_version_tells_nothing(kind: str) -> None:
    served, one = KINDS[kind], {"spec": SPECS[kind]}
    other = {"spec": {**SPECS[kind], "template": "other"}}
    submitted = served.spec_digest(one)
    assert not served.differs(one, submitted)
    assert served.differs(other, submitted)
    for earlier in ("", "0123456789abcdef", "1-0123456789abcdef"):
        assert not served.differs(one, earlier)
