"""Names of metrics and labels in a query of Prometheus, to hold queries against the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<range>\[[^\]]*\])|(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<number>\d[\w.]*)|(?P<other>=~|!~|!=|==|>=|<=|[^\s])""",
    re.X,
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {*_LISTS, "and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass
class PromqlNames:
    """What a query names: metrics, labels of their selectors, and labels in lists such as `by (…)`."""

    selected: dict[str, set[str]] = field(default_factory=dict)  # metric: labels in its braces
    listed: set[str] = field(default_factory=set)


def names_in(query: str) -> PromqlNames:
    """Read one query. It must be one that Prometheus takes: this does not check it."""
    tokens = [
        (one.lastgroup, one.group()) for one in _TOKEN.finditer(query) if one.lastgroup != "range"
    ]
    found, at = PromqlNames(), 0
    while at < len(tokens):
        kind, word = tokens[at]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name":
            continue
        if word in _LISTS:
            if after == "(":
                end = at + [text for _, text in tokens[at:]].index(")")
                found.listed |= {text for name, text in tokens[at:end] if name == "name"}
                at = end + 1
        elif word not in _WORDS and after not in ("(", "by", "without"):
            labels = found.selected.setdefault(word, set())
            if after == "{":
                end = at + [text for _, text in tokens[at:]].index("}")
                labels |= {text for name, text in tokens[at:end] if name == "name"}
                at = end + 1
    return found


def without_variables(query: str, window: str = "5m", length: str = "1h") -> str:
    """The query as Grafana sends it, with every choice at `All`."""
    query = query.replace("$__rate_interval", window).replace("$__range", length)
    return re.sub(r"\$\w+", ".*", query)
