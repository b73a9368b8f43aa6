"""HTML as text, escaped by construction: only `Markup` passes unescaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

# Pages have no scripts and load nothing.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    # With `no-referrer` a browser names no origin when it sends a form, and forms without one are refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #888; --blue: #2563eb; --red: #dc2626;
  --green: #16a34a; --amber: #d97706 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } th { color: var(--quiet); font-weight: 500 }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
a { color: var(--blue); text-decoration: none } .quiet { color: var(--quiet) }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); border-radius: 6px;
  font-size: 13px }
.state { font-weight: 600 } .succeeded { color: var(--green) } .failed { color: var(--red) }
.running, .starting { color: var(--blue) }
.recovering, .stopping, .waiting, .queued, .paused { color: var(--amber) }
svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px }
""".strip()


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | None) -> Markup:
    """`<name …>inside</name>`. A trailing underscore of an attribute's name is dropped."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(inside)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one after the other; what is not Markup is escaped."""
    return Markup("".join(one if isinstance(one, Markup) else html.escape(one) for one in parts))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> Markup:
    """A table; `numbers` are the columns that are aligned to the right."""

    def cell(kind: str, index: int, inside: str) -> Markup:
        return tag(kind, inside, class_="n" if index in numbers else None)

    head = tag("tr", *(cell("th", index, one) for index, one in enumerate(heads)))
    body = [tag("tr", *(cell("td", index, one) for index, one in enumerate(row))) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *body))


def page(title: str, *body: str, refresh_s: int | None = None) -> str:
    """A whole page without any script. `refresh_s` makes the browser load it again."""
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"{again}<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{join(body)}</body></html>"
    )


def curve(steps: Sequence[int], values: Sequence[float | None], label: str) -> Markup:
    """A line chart as inline SVG; gaps where a value is missing."""
    known = [one for one in values if one is not None]
    if len(known) < 2:
        return tag("p", f"{label}: not enough points yet", class_="quiet")
    low, high = min(known), max(known)
    span_x, span_y = max(1, steps[-1] - steps[0]), (high - low) or 1.0
    path, pen = [], "M"
    for step, value in zip(steps, values, strict=True):
        if value is None:
            pen = "M"
            continue
        x = 60 + 720 * (step - steps[0]) / span_x
        y = 170 - 150 * (value - low) / span_y
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    labels = (
        (54, 24, f"{high:.4g}", "end"),
        (54, 174, f"{low:.4g}", "end"),
        (60, 192, f"step {steps[0]}", "start"),
        (780, 192, str(steps[-1]), "end"),
        (420, 192, label, "middle"),
    )
    texts = (_text(*one) for one in labels)
    line = tag("path", d="".join(path), fill="none", stroke="#2563eb", stroke_width="1.5")
    return tag("svg", line, *texts, viewBox="0 0 800 200", role="img", aria_label=label)


def _text(x: int, y: int, said: str, anchor: str) -> Markup:
    size, fill = "11", "#888"
    return tag("text", said, x=str(x), y=str(y), text_anchor=anchor, font_size=size, fill=fill)
