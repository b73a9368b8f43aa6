"""Which variables of the user are forwarded to a job."""

from __future__ import annotations

import pytest

from phalanx.cli.client.invocation import Invocation, forward_environment, protects_secrets
from phalanx.errors import UserError

pytestmark = pytest.mark.unit


ENV = {"A": "1", "API_KEY": "x", "PHALANX_JOB": "j-1", "SHLVL": "2", "ODD": "\udcff"}


def test_secrets_are_forwarded_and_named() -> None:
    found = forward_environment(ENV, [])
    assert found.env == {"A": "1", "API_KEY": "x"}
    assert (found.secrets, found.withheld, found.not_utf8) == (("API_KEY",), (), ("ODD",))
    assert "x" not in repr(found.env["A"]) and "'x'" not in repr(found)
    assert forward_environment(ENV, ["PHALANX_JOB"]).env["PHALANX_JOB"] == "j-1"
    with pytest.raises(UserError, match="--env GONE: the variable is not set"):
        forward_environment(ENV, ["GONE"])


def test_no_secret_is_sent_in_clear_to_another_machine() -> None:
    found = forward_environment(ENV, [], protected=False)
    assert (found.env, found.secrets, found.withheld) == ({"A": "1"}, (), ("API_KEY",))
    with pytest.raises(UserError, match="--env API_KEY: a secret is not sent"):
        forward_environment(ENV, ["API_KEY"], protected=False)


@pytest.mark.parametrize(
    ("url", "protects"),
    [
        (None, True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("https://train.example.org", True),
        ("http://train.example.org", False),
        ("http://10.0.0.1:1", False),
    ],
)
def test_which_links_protect_secrets(url: str | None, protects: bool) -> None:
    assert protects_secrets(url) is protects


def test_the_owner_is_the_login_name(tmp_path) -> None:
    assert Invocation({"USER": "a", "LOGNAME": "b"}, tmp_path, "python").owner() == "a"
    assert Invocation({"LOGNAME": "b"}, tmp_path, "python").owner() == "b"
    assert Invocation({}, tmp_path, "python").owner().startswith("uid-")
