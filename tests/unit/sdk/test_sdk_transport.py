"""Errors travel over HTTP and arrive as what they were."""

from __future__ import annotations

import httpx
import pytest

from phalanx import errors
from phalanx.errors import PlatformError, Problem, SpecInvalid, TooManyRequests, UserError
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.sdk import PhalanxClient, transport
from phalanx.sdk.transport import _BY_CODE, encode, raise_for
from phalanx.server.gate import cookie_of, error_response, host_name

pytestmark = pytest.mark.unit


def answered(error: PlatformError) -> httpx.Response:
    response = error_response(error)
    return httpx.Response(
        response.status_code, content=response.body, request=httpx.Request("GET", "http://x/y")
    )


@pytest.mark.parametrize("kind", sorted(set(_BY_CODE.values()), key=lambda one: one.code))
def test_every_error_comes_back_with_its_class(kind: type[PlatformError]) -> None:
    error = SpecInvalid([Problem("a.b", "no", "1")]) if kind is SpecInvalid else kind("said so")
    with pytest.raises(PlatformError) as caught:
        raise_for(answered(error))
    assert type(caught.value) is kind
    assert caught.value.message == error.message
    assert caught.value.exit_code == error.exit_code


def test_codes_are_unique() -> None:
    kinds = {
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, PlatformError)
    }
    assert set(_BY_CODE.values()) == kinds


def test_problems_and_hints_survive() -> None:
    error = SpecInvalid([Problem("a", "one", "1"), Problem("b", "two")], "see the reference")
    with pytest.raises(SpecInvalid) as caught:
        raise_for(answered(error))
    assert (caught.value.problems, caught.value.hint) == (error.problems, error.hint)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:80", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:8080", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
        ("a.b:1:2", "a.b"),
    ],
)
def test_host_names(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("header", "value"),
    [("phalanx_8080_ab=abc; x=1", "abc"), ("x=1", ""), ("", ""), ("\x00;;=", "")],
)
def test_cookies(header: str, value: str) -> None:
    assert cookie_of(header, "phalanx_8080_ab") == value


def test_a_text_that_is_not_utf8_is_named() -> None:
    spec = {"schema": 1, "run": ["echo", "b\udce4d"]}
    with pytest.raises(UserError, match=r"'b\\udce4d' is not UTF-8"):
        encode(SubmitRequest(spec=spec))
    assert encode(SubmitRequest(spec={"run": "größer"})).decode().count("größer") == 1


def test_a_get_that_the_server_is_too_busy_for_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", pauses.append)
    busy = error_response(TooManyRequests("wait"))
    answers = [
        httpx.Response(429, content=busy.body, headers={"Retry-After": "2"}),
        httpx.Response(429, content=busy.body, headers={"Retry-After": "soon"}),
        httpx.Response(200, json=[]),
    ]
    made = httpx.MockTransport(lambda request: answers.pop(0))
    with PhalanxClient("http://x", "t", transport=made) as client:
        assert client.tokens() == []
        assert pauses == [2.0, 1.0]
        # Not for ever, and a change is not repeated without a key.
        answers.append(httpx.Response(429, content=busy.body))
        with pytest.raises(TooManyRequests):
            client.rotate_token("a")
        monkeypatch.setattr(transport, "_BUSY_S", 0.0)
        answers.append(httpx.Response(429, content=busy.body))
        with pytest.raises(TooManyRequests):
            client.tokens()
