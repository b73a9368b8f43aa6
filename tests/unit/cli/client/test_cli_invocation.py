"""Which variables of the user are forwarded to a job."""

from __future__ import annotations

import pytest

from phalanx.cli.client.invocation import Invocation, forward_environment, looks_secret
from phalanx.errors import UserError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("WANDB_API_KEY", "", True),
        ("HFTOKEN", "", True),
        ("DATABASE_URL", "postgres://me:pw@host/db", True),
        ("DATABASE_URL", "postgres://host/db", False),
        ("KEYBOARD", "us", False),
        ("MONKEY", "1", False),
    ],
)
def test_secrets_are_recognised_by_word_or_by_value(name, value, secret) -> None:
    assert looks_secret(name, value) is secret


def test_secrets_are_withheld_unless_they_are_named() -> None:
    env = {"A": "1", "API_KEY": "x", "PHALANX_JOB": "j-1", "SHLVL": "2", "ODD": "\udcff"}
    plain = forward_environment(env, [])
    assert plain.env == {"A": "1"}
    assert (plain.withheld, plain.not_utf8) == (("API_KEY",), ("ODD",))
    assert forward_environment(env, ["API_KEY"]).env == {"A": "1", "API_KEY": "x"}
    with pytest.raises(UserError, match="--env GONE"):
        forward_environment(env, ["GONE"])


def test_the_owner_is_the_login_name(tmp_path) -> None:
    assert Invocation({"USER": "a", "LOGNAME": "b"}, tmp_path, "python").owner() == "a"
    assert Invocation({"LOGNAME": "b"}, tmp_path, "python").owner() == "b"
    assert Invocation({}, tmp_path, "python").owner().startswith("uid-")
