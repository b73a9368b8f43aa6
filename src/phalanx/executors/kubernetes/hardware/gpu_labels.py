"""Keep the labels of GPUs while the program that writes them restarts.

GPU feature discovery and the node labellers of other vendors remove their labels when their pods end, and
write them again a moment later. Without a memory the nodes would lose their type meanwhile, and running
jobs would count as if they held slots of another kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEPT_S = 300.0
"""Time for which labels that are gone still count."""
_PREFIXES = ("nvidia.com/", "amd.com/")

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of one node's GPUs as they were last written."""

    uid: str  # of the node
    version: str  # of the node, when it was last looked at
    labels: Mapping[str, str]
    gone_at: float | None = None  # when some of them were first missing; None: all are there


class GpuLabels:
    """A memory of the GPU labels of all nodes. Not safe for several threads."""

    def __init__(self) -> None:
        self._known: dict[str, _Labels] = {}
        self.until = math.inf
        """The time at which the first labels that are kept stop to count."""

    def kept(self, nodes: Sequence[Object], now: float) -> list[Object]:
        """The nodes, with labels that have been missing for less than `KEPT_S` at the time `now`."""
        self.until = math.inf
        found = [self._with_labels(one, now) for one in nodes]
        names = {str(one["metadata"]["name"]) for one in nodes}
        self._known = {name: one for name, one in self._known.items() if name in names}
        return found

    def _with_labels(self, node: Object, now: float) -> Object:
        meta = node["metadata"]
        name, uid = str(meta["name"]), str(meta.get("uid", ""))
        version, known = str(meta.get("resourceVersion", "")), self._known.get(str(meta["name"]))
        if known is not None and known.gone_at is None and known.version == version != "":
            return node
        labels: Mapping[str, str] = meta.get("labels") or {}
        own = {key: value for key, value in labels.items() if key.startswith(_PREFIXES)}
        gone = known is not None and known.uid == uid and bool(known.labels.keys() - own.keys())
        since = now if known is None or known.gone_at is None else known.gone_at
        if known is None or not gone or now - since >= KEPT_S:
            self._known[name] = _Labels(uid, version, own)
            return node
        self._known[name] = _Labels(uid, version, {**known.labels, **own}, since)
        self.until = min(self.until, since + KEPT_S)
        kept = {**meta, "labels": {**known.labels, **labels}, "resourceVersion": f"{version}+kept"}
        return {**node, "metadata": kept}
