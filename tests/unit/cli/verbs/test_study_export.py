"""`sweep export`: the table of trials as CSV and Parquet."""

from __future__ import annotations

import builtins
import io
import sys
from typing import Any

import pytest

from phalanx.cli.verbs.studies.sweep import _parquet_writer, _table
from phalanx.errors import UserError
from phalanx.schemas.api.studies import TrialView

pytestmark = pytest.mark.unit


def trial(number: int, params: dict[str, Any], value: float | None) -> TrialView:
    plain = {"study": 3, "number": number, "label": f"s-3/{number}", "params": params}
    more = {"origin": {"sampler": "x"}, "status": "completed", "value": value}
    return TrialView.model_validate({**plain, **more})


class Output:
    """A standard output that keeps its bytes."""

    def __init__(self, terminal: bool = False) -> None:
        self.buffer, self.terminal = io.BytesIO(), terminal

    def isatty(self) -> bool:
        return self.terminal


TRIALS = [
    trial(0, {"lr": 1, "kind": "a", "depth": 3}, 0.5),
    trial(1, {"lr": 0.5, "kind": 2}, None),  # no depth: inactive
]


def test_a_parquet_table_has_one_type_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = Output()
    monkeypatch.setattr(sys, "stdout", out)
    write = _parquet_writer()
    write(*_table(TRIALS))
    monkeypatch.undo()
    table = parquet.read_table(io.BytesIO(out.buffer.getvalue())).to_pydict()
    assert table["trial"] == [0, 1]
    assert (table["lr"], table["kind"]) == ([1.0, 0.5], ["a", "2"])
    assert (table["depth"], table["value"]) == ([3, None], [0.5, None])


def test_parquet_on_a_terminal_and_without_its_library_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", Output(terminal=True))
    with pytest.raises(UserError, match="parquet is no text"):
        _parquet_writer()
    monkeypatch.setattr(sys, "stdout", Output())
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="needs pyarrow") as refused:
        _parquet_writer()
    monkeypatch.undo()
    assert "phalanx[data]" in str(refused.value.hint)
