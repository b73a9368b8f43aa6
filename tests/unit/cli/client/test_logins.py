"""Tokens of logins in the user's file, and the browser that brings a code back."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from phalanx.cli.client import logins
from phalanx.cli.client.invocation import Invocation
from phalanx.cli.client.logins import Callback, StoredLogin, callback
from phalanx.cli.client.session import Session
from phalanx.errors import UserError

pytestmark = pytest.mark.unit
URL = "https://train.example.org:8080"
NOW = datetime.now(UTC)


def invocation(tmp_path: Path) -> Invocation:
    return Invocation({"HOME": str(tmp_path)}, tmp_path, "python")


def login(token: str = "phx_secret", hours: float = 1) -> StoredLogin:
    return StoredLogin(account="user:ada", token=token, expires_at=NOW + timedelta(hours=hours))


def test_a_login_is_kept_for_its_address_in_a_file_of_the_user_alone(tmp_path: Path) -> None:
    me = invocation(tmp_path)
    assert logins.find(me, URL) is None
    logins.store(me, URL + "/", login())
    logins.store(me, "https://other", login("phx_other"))
    file = logins.file_of(me)
    assert file == tmp_path / ".config/phalanx/logins.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    session = Session(me, tmp_path, URL)
    assert session._remote_token() == "phx_secret" and session.is_logged_in()
    assert Session(me, tmp_path, URL, "given")._remote_token() == "given"
    logins.store(me, URL, None)
    assert set(json.loads(file.read_text())["logins"]) == {"https://other"}
    with pytest.raises(UserError, match="needs a token"):
        session._remote_token()
    logins.store(me, URL, login(hours=-1))
    with pytest.raises(UserError, match="has expired"):
        session._remote_token()
    assert "phx_secret" not in repr(login())


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    me = invocation(tmp_path)
    logins.store(me, URL, login())
    logins.file_of(me).chmod(0o622)
    with pytest.raises(UserError, match="other users can write"):
        logins.find(me, URL)
    logins.file_of(me).chmod(0o600)
    logins.file_of(me).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        logins.find(me, URL)


def test_a_browser_with_another_state_is_sent_away() -> None:
    with callback() as one:
        assert one.address.startswith("http://127.0.0.1:")
        assert take(one, "/callback?code=c&state=") == 400, "nothing is waited for yet"
        one.wanted = "right"
        for path in (
            "/callback?code=c&state=wrong",
            "/callback?code=c",
            "/other?code=c&state=right",
        ):
            assert take(one, path) == 400 and not one.code
        assert take(one, "/callback?error=access_denied&state=right") == 400 and one.refused
        assert take(one, "/callback?code=c&state=right") == 200 and one.code == "c"


def take(one: Callback, path: str) -> int:
    return one.take(path)[0]
