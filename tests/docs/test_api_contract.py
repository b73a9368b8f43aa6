"""A release keeps what clients of the HTTP API rely on: routes, parameters, fields and values stay."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from phalanx.server.openapi import add_routes

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import api_contract  # noqa: E402

RECORD = ROOT / "docs" / "reference" / "rest-contract.txt"
SMALL: dict[str, Any] = {
    "paths": {
        "/jobs": {
            "post": {
                "parameters": [{"in": "query", "name": "project"}],
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Ask"}}
                    }
                },
                "responses": {"200": {"content": {"application/json": {"schema": {}}}}},
            }
        }
    },
    "components": {
        "schemas": {
            "Ask": {
                "properties": {
                    "name": {"type": "string"},
                    "mode": {"enum": ["a", "b"]},
                    "of": {"type": "array", "items": {"type": "string"}},
                }
            },
            "State": {"enum": ["queued", "running"]},
        }
    },
}


def test_nothing_that_clients_rely_on_is_gone() -> None:
    app = FastAPI(separate_input_output_schemas=False, docs_url=None, redoc_url=None)
    add_routes(app)
    before = set(RECORD.read_text().splitlines())
    assert len(before) > 1000
    assert api_contract.breaking(before, api_contract.contract_of(app.openapi())) == [], (
        "These changes break programs that use the API; keep the old form beside the new one"
    )


def without_route(document: dict[str, Any]) -> None:
    document["paths"].clear()


def without_parameter(document: dict[str, Any]) -> None:
    document["paths"]["/jobs"]["post"]["parameters"].clear()


def required_parameter(document: dict[str, Any]) -> None:
    document["paths"]["/jobs"]["post"]["parameters"][0]["required"] = True


def without_field(document: dict[str, Any]) -> None:
    del document["components"]["schemas"]["Ask"]["properties"]["name"]


def other_type(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Ask"]["properties"]["name"]["type"] = "integer"


def required_field(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Ask"]["required"] = ["name"]


def without_value(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["State"]["enum"].pop()


def without_inline_value(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Ask"]["properties"]["mode"]["enum"].pop()


@pytest.mark.parametrize(
    "change",
    [
        without_route,
        without_parameter,
        required_parameter,
        without_field,
        other_type,
        required_field,
        without_value,
        without_inline_value,
    ],
)
def test_a_change_that_breaks_clients_is_found_and_not_recorded(
    change: Callable[[dict[str, Any]], None],
) -> None:
    changed = copy.deepcopy(SMALL)
    change(changed)
    before, after = api_contract.contract_of(SMALL), api_contract.contract_of(changed)
    assert api_contract.breaking(before, after)
    assert api_contract.recorded(before, after) == before


def test_additions_pass_and_are_recorded() -> None:
    changed = copy.deepcopy(SMALL)
    changed["paths"]["/pools"] = {
        "get": {"parameters": [{"in": "query", "name": "x", "required": True}]}
    }
    changed["components"]["schemas"]["State"]["enum"].append("stopped")
    changed["components"]["schemas"]["Ask"]["properties"]["note"] = {"type": "string"}
    either = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    changed["components"]["schemas"]["Ask"]["properties"]["of"]["items"] = either
    before, after = api_contract.contract_of(SMALL), api_contract.contract_of(changed)
    assert api_contract.breaking(before, after) == []
    assert api_contract.recorded(before, after) == after > before
