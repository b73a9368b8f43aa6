"""Containers of a pod beside the one that trains: sidecars, and containers that run before the ranks."""

from __future__ import annotations

import math
from typing import Any

from phalanx.core.contract.secrecy import is_secret
from phalanx.kit.units import parse_quantity
from phalanx.schemas.foreign.documents import unfilled_in
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, dropped, mapped, refused

_SECTION = "kubernetes.init"
_NO_SIDE = "containers beside the ranks have no such setting here; remove it"
SIDE_CONTAINER: tuple[KeyRule, ...] = (
    *mapped(_SECTION, "name", "image", "command", "args", "restartPolicy", of_image=True),
    *mapped(_SECTION, "env.*.name", "env.*.value", "resources.limits", of_image=True),
    *mapped(_SECTION, "resources.requests", of_image=True),
    *refused("write the value", "env.*.valueFrom", "envFrom", of_image=True),
    *dropped("the pool decides", "imagePullPolicy", "terminationMessagePath"),
    *dropped("the pool decides", "terminationMessagePolicy", "resizePolicy", "securityContext"),
    *dropped("it has all volumes of the ranks", "volumeMounts"),
    *dropped("ranks find it on this node by its port", "ports"),
    *dropped("Phalanx watches ranks and steps itself", "livenessProbe", "readinessProbe"),
    *dropped("Phalanx watches ranks and steps itself", "startupProbe"),
    *dropped("jobs have no terminal", "stdin", "stdinOnce", "tty"),
    *refused(_NO_SIDE, "lifecycle", "volumeDevices", "workingDir", of_image=True),
    *refused(_NO_SIDE, "resources.claims", "restartPolicyRules", of_image=True),
)


def read_side(one: ForeignReader) -> dict[str, Any]:
    """A sidecar or init container as an entry of the section `kubernetes`. Problems go to the log."""
    image = one.text("image")
    if image is None:
        one.refuse("image", "is required: the container image")
    elif names := unfilled_in(image):
        one.refuse("image", f"has no value for ${names[0]}; add --set {names[0]}=VALUE")
    found: dict[str, Any] = {
        "name": one.text("name"),
        "image": image,
        "command": one.words("command"),
        "args": one.words("args"),
        "env": _environment(one),
        **_resources(one),
    }
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _environment(one: ForeignReader) -> dict[str, str]:
    found = {}
    for entry in one.entries("env"):
        name, value = entry.text("name"), entry.value("value")
        if entry.value("valueFrom") is not None:
            continue  # refused by the table
        if name is None or not isinstance(value, str | None):
            entry.refuse("value", "needs a name, and its value as text in quotes")
        elif is_secret(name, value or ""):
            entry.refuse("value", f"{name} is a secret: mount a Secret instead")
        else:
            found[name] = value or ""
    return found


def _resources(one: ForeignReader) -> dict[str, Any]:
    """CPUs and memory; a request counts, else the limit."""
    at = one.at("resources")
    section = {**at.mapping("limits"), **at.mapping("requests")}
    where = at.at("requests") if at.mapping("requests") else at.at("limits")
    found: dict[str, Any] = {}
    for name, value in section.items():
        try:
            amount = None if isinstance(value, bool | dict | list) else parse_quantity(value)
        except ValueError:
            amount = None
        if amount is None or not amount.is_finite() or not 0 < amount <= 2**62:
            where.refuse(name, "must be a quantity such as 8 or 64Gi", value)
        elif name == "cpu":
            found["cpus"] = max(0.001, math.ceil(amount * 1000) / 1000)
        elif name == "memory":
            found["memory"] = math.ceil(amount)
        elif name != "ephemeral-storage":
            where.refuse(name, "a container beside the ranks has cpu and memory only")
    return found
