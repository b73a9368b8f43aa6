"""Figures of a scaling benchmark: bars in the terminal, and a small SVG file."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.telemetry.scaling import ScalingRow

_WIDTH = 24
_W, _H, _LEFT, _TOP, _BOTTOM = 480, 300, 48, 34, 40


def bars(values: Sequence[float], whole: Sequence[float]) -> list[str]:
    """A bar for each value, with dots up to the value of perfect scaling."""
    most = max(*values, *whole, 1e-12)
    found = []
    for value, perfect in zip(values, whole, strict=True):
        done = round(value / most * _WIDTH)
        found.append("█" * done + "·" * max(0, round(perfect / most * _WIDTH) - done))
    return found


def svg(table: Sequence[ScalingRow], model: str) -> str:
    """An SVG of speed-up over ranks, with the line of perfect scaling and each efficiency."""
    most = max((max(row.ranks, row.speed_up) for row in table), default=1.0)

    def place(ranks: float, speed_up: float) -> str:
        x = _LEFT + ranks / most * (_W - _LEFT - 40)
        y = _H - _BOTTOM - speed_up / most * (_H - _TOP - _BOTTOM)
        return f"{x:.1f} {y:.1f}"

    line = "M" + "L".join(place(row.ranks, row.speed_up) for row in table)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" font-family="sans-serif"'
        f' font-size="12"><rect width="{_W}" height="{_H}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{model}: speed-up over ranks</text>',
        f'<path d="M{place(0, 0)}L{place(most, most)}" stroke="#94a3b8" stroke-dasharray="4 4"/>',
        f'<path d="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>',
    ]
    for row in table:
        x, y = place(row.ranks, row.speed_up).split()
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#2563eb"/>')
        parts.append(f'<text x="{x}" y="{float(y) + 18:.1f}">{row.efficiency:.0%}</text>')
        parts.append(f'<text x="{x}" y="{_H - 20}" text-anchor="middle">{row.ranks}</text>')
    return "\n".join([*parts, "</svg>", ""])
