"""Runs as rows of a file: CSV, Arrow or Parquet. Each parameter and each metric is a column."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from csv import DictWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.core.experiments.parameters import text_of
from phalanx.errors import UserError
from phalanx.kit.text import job_label

if TYPE_CHECKING:
    from phalanx.schemas.api.tracking.runs import RunView

_PLAIN = ("name", "project", "owner", "state", "group", "commit", "study", "duration_s")


def rows_of(found: Sequence[RunView]) -> list[dict[str, Any]]:
    """A row for each run; every row has the columns of all runs, with None where a run has no value."""
    rows = [_row(one) for one in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _row(one: RunView) -> dict[str, Any]:
    row: dict[str, Any] = {"run": job_label(one.job)}
    row |= {name: getattr(one, name) for name in _PLAIN}
    row |= {"tags": " ".join(one.tags), "submitted_at": one.submitted_at, "ended_at": one.ended_at}
    row |= {f"params.{name}": value for name, value in one.params.items()}
    for name, metric in one.metrics.items():
        row |= {
            f"metrics.{name}": metric.last,
            f"metrics.{name}.min": metric.min,
            f"metrics.{name}.max": metric.max,
        }
    return row


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, with a line of names; `-` is the standard output."""
    with nullcontext(sys.stdout) if str(path) == "-" else path.open("w", newline="") as file:
        if rows:
            lines = DictWriter(file, list(rows[0]), lineterminator="\n")
            lines.writeheader()
            lines.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return text_of(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def write_arrow(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as an Arrow file. Raises UserError."""
    _columnar().feather.write_feather(_arrow_table(rows), str(path), compression="uncompressed")


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a Parquet file. Raises UserError."""
    _columnar().parquet.write_table(_arrow_table(rows), path)


def _arrow_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    names = rows[0] if rows else ()
    return _columnar().table({name: _column([row[name] for row in rows]) for name in names})


def _columnar() -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        import pyarrow.feather  # type: ignore[import-untyped, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UserError("this file needs pyarrow", "pip install 'phalanx[data]'") from None
    return pyarrow


def _column(values: Sequence[Any]) -> list[Any]:
    """The values of a column, all of one kind: numbers, truth values, times, or texts."""
    kinds = {type(one) for one in values if one is not None}
    if kinds <= {int}:
        return list(values)
    if kinds <= {int, float}:
        return [None if one is None else float(one) for one in values]
    if len(kinds) == 1:
        return list(values)
    return [None if one is None else text_of(one) for one in values]
