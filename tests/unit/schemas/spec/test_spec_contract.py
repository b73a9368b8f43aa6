"""What a spec says of its ranks reaches the contract, key by key, and the contract survives the store."""

import json

import pytest

from phalanx.core.codec import decode, encode
from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.contract.job import (
    JobContract,
    PythonRequirements,
    RankCommand,
    WarmStart,
)
from phalanx.core.gang.stalls import StallPolicy
from phalanx.core.training.checkpoints import Best, Keep
from phalanx.schemas.spec.checkpointing import Checkpointing
from phalanx.schemas.spec.document import validate_spec

pytestmark = pytest.mark.unit

# For every key of the section: what is written, and the fields of the policy that change by it.
KEYS = {
    "every": ("500 steps", {"every": SaveInterval(steps=500)}),
    "keep": (
        {"last": 2, "best": {"metric": "acc"}, "every": 100, "age": "1h"},
        {"keep": Keep(2, Best("acc", "max", 1), 100, 3600.0)},
    ),
    "async": (False, {"background": False}),
    "compress": ("zstd", {"compress": "zstd"}),
    "store": ("s3://bucket/runs/", {"store": "s3://bucket/runs"}),
    "encryption": ({"key_env": "CKPT_KEY"}, {"key_env": "CKPT_KEY"}),
    "directory": ("out/state", {"directory": "out/state"}),
    "wait": ("90s", {"wait_s": 90.0}),
    "on_final_failure": ("fail", {"on_final_failure": "fail"}),
    "continue": (True, {"continues": True}),
    # Resolved when the job is submitted; the contract has it beside the policy.
    "resume_from": ("j-12", {}),
}
DEFAULT = {"every": SaveInterval(600.0), "keep": Keep(last=3)}


def contract(**spec):
    return validate_spec({"schema": 1, "run": "python t.py", **spec}).to_contract()


def test_every_key_of_the_section_has_a_case():
    assert {field.alias or name for name, field in Checkpointing.model_fields.items()} == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_checkpoint_key_reaches_the_policy(key):
    written, changed = KEYS[key]
    (role,) = contract(checkpoint={key: written}).roles
    assert role.checkpoint == CheckpointPolicy(**{**DEFAULT, **changed})


def test_a_file_may_hold_the_key():
    (role,) = contract(checkpoint={"encryption": {"key_file": "/k"}}).roles
    assert (role.checkpoint.key_env, role.checkpoint.key_file) == (None, "/k")


@pytest.mark.parametrize(
    ("stall", "policy"),
    [
        ("auto", StallPolicy()),
        ("never", StallPolicy(watch=False)),
        ("5m", StallPolicy(after_s=300.0)),
        (
            {"start": "1h", "validation": "2h", "save": "5m", "compile": "10m", "metrics": "5m"},
            StallPolicy(
                start_s=3600.0,
                validation_s=7200.0,
                save_s=300.0,
                compile_s=600.0,
                metrics_s=300.0,
            ),
        ),
    ],
)
def test_stall_policies(stall, policy):
    (role,) = contract(stall=stall).roles
    assert role.stall == policy


def test_roles_that_are_not_first_have_policies_of_their_own():
    actor = {"run": ["python", "a.py"], "nodes": 2, "required": False, "env": {"B": "2"}}
    lead, actor = contract(
        env={"A": "1"},
        checkpoint={"directory": "out", "every": "1m"},
        training={"clip": 1},
        roles={"actor": actor},
    ).roles
    assert (lead.name, lead.leads, lead.training) == ("worker", True, {"clip": 1.0})
    assert (actor.name, actor.leads, actor.required, actor.training) == (
        "actor",
        False,
        False,
        None,
    )
    assert lead.command == RankCommand(("python t.py",), shell=True)
    assert actor.command.argv == ["python", "a.py"]
    assert (lead.checkpoint.directory, actor.checkpoint.directory) == ("out", None)
    assert lead.checkpoint.every == actor.checkpoint.every == SaveInterval(60.0)
    assert (actor.stall, actor.reference_world) == (StallPolicy(watch=False), 2)
    assert actor.env == {"B": "2"}


def test_a_contract_survives_the_store():
    whole = contract(
        setup="make",
        secrets=["TOKEN"],
        env={"A": "1"},
        warm={"imports": ["numpy"]},
        grace="5s",
        python={"packages": ["einops"], "find_links": ["wheels"]},
        metrics=["loss {loss}"],
        checkpoint={"keep": {"best": {"metric": "acc"}}, "every": "auto"},
        training={"strategy": {"fsdp": 1}, "network": {"preset": "ethernet"}},
    )
    assert decode(JobContract, json.loads(json.dumps(encode(whole)))) == whole
    assert (whole.setup, whole.secrets, whole.env) == ("make", ("TOKEN",), {"A": "1"})
    assert whole.warm == WarmStart(imports=("numpy",))
    assert whole.python == PythonRequirements(packages=("einops",), find_links=("wheels",))
    assert (whole.roles[0].grace_s, whole.roles[0].metric_lines) == (5.0, ("loss {loss}",))
