"""Learning curves as small SVG files, from what `phalanx metrics JOB --json` prints.

    phalanx metrics j-3 --points 300 --json | python scripts/draw_curves.py loss val_acc > curves.svg

One panel for each name, rank 0, with a running mean where a curve has many points.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 34
COLOURS = ("#2563eb", "#c2410c", "#15803d", "#7c3aed")
SMOOTH_FROM = 60

Curve = list[tuple[float, float]]


def smoothed(curve: Curve, width: int) -> Curve:
    """The mean of each point and its neighbours."""
    found = []
    for at in range(len(curve)):
        near = curve[max(0, at - width) : at + width + 1]
        found.append((curve[at][0], sum(value for _, value in near) / len(near)))
    return found


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between two bounds."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 1.0
    while power > raw:
        power /= 10
    step = next(power * by for by in (1, 2, 5, 10) if power * by >= raw)
    first = -(-low // step) * step
    return [first + step * n for n in range(int((high - first) / step + 1e-9) + 1)]


def path(curve: Curve, place: tuple[float, float, float, float], left: float) -> str:
    """The curve as an SVG path; `place` is (lowest x, highest x, lowest y, highest y)."""
    return "M" + "L".join(f"{left + x_at(x, place):.1f} {y_at(y, place):.1f}" for x, y in curve)


def x_at(x: float, place: tuple[float, float, float, float]) -> float:
    """Where a step is drawn."""
    low, high = place[:2]
    return LEFT + (x - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)


def y_at(y: float, place: tuple[float, float, float, float]) -> float:
    """Where a value is drawn."""
    low, high = place[2:]
    return HEIGHT - BOTTOM - (y - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)


def panel(name: str, curve: Curve, colour: str, left: float) -> list[str]:
    """One curve with its axes."""
    xs, ys = [x for x, _ in curve], [y for _, y in curve]
    pad = 0.05 * ((max(ys) - min(ys)) or 1.0)
    place = (0.0, max(xs), min(ys) - pad, max(ys) + pad)
    out = [f'<text x="{left + LEFT}" y="16" font-weight="600">{name}</text>']
    for value in ticks(place[2], place[3]):
        y = y_at(value, place)
        out.append(
            f'<path d="M{left + LEFT} {y:.1f}H{left + WIDTH - RIGHT}" stroke="#8883"/>'
            f'<text x="{left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in ticks(*place[:2]):
        x = left + x_at(value, place)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="middle">{value:g}</text>')
    out.append(
        f'<text x="{left + (LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 2}" text-anchor="middle">'
        "optimizer step</text>"
    )
    faint = len(curve) >= SMOOTH_FROM
    line = f'fill="none" stroke="{colour}" stroke-linejoin="round"'
    if faint:
        out.append(f'<path d="{path(curve, place, left)}" {line} stroke-opacity="0.25"/>')
        curve = smoothed(curve, len(curve) // 40)
    out.append(f'<path d="{path(curve, place, left)}" {line} stroke-width="2"/>')
    return out


def draw(view: dict[str, object], names: Sequence[str]) -> str:
    """The panels side by side."""
    series = {one["name"]: one for one in view["series"] if one["rank"] == 0}  # type: ignore[attr-defined]
    out = []
    for number, name in enumerate(names):
        one = series[name]
        known = zip(one["steps"], one["values"], strict=True)
        curve = [(float(step), float(value)) for step, value in known if value is not None]
        out += panel(name, curve, COLOURS[number % len(COLOURS)], number * WIDTH)
    width = WIDTH * len(names)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}"'
        f' height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="11" fill="#888">'
    )
    return "\n".join([head, *out, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(json.load(sys.stdin), sys.argv[1:]))
