"""Writes src/phalanx/monitoring/dashboards/*.json: `make docs`. With --check: says which are out of date.

Needs `grafana-foundation-sdk`, of the extra `dev`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards import control_plane, debug, devices, executive, grafana, on_call, training
from dashboards.panels import Board

BOARDS: tuple[Board, ...] = tuple(
    one.BOARD for one in (executive, on_call, debug, training, devices, control_plane)
)
FOLDER = Path(__file__).resolve().parent.parent / "src" / "phalanx" / "monitoring" / "dashboards"


def files() -> dict[str, str]:
    """The text of every file by its name."""
    return {
        f"{board.uid}.json": grafana.as_json(
            board, tuple(one for one in BOARDS if one is not board)
        )
        for board in BOARDS
    }


def main(check: bool) -> int:
    """Write the files, or with `check` name those that differ."""
    wanted = files()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    stale = sorted({*wanted, *there} - {name for name in wanted if there.get(name) == wanted[name]})
    if check:
        for name in stale:
            print(f"{name} is not what `make docs` writes")
        return int(bool(stale))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
