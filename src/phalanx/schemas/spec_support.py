"""Fields of the spec that are understood but not built yet: refused one by one, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.errors import Problem
from phalanx.schemas.spec_models import JobSpec

LIVE_FRAMEWORKS = ("torch", "none")


def _elastic(spec: JobSpec) -> str | None:
    return None if spec.resources.nodes.is_number else "a range of nodes"


def _cpu_range(spec: JobSpec) -> str | None:
    cpus = spec.resources.cpus
    return None if cpus is None or cpus.is_number else "a range of CPUs"


def _framework(spec: JobSpec) -> str | None:
    return None if spec.framework in LIVE_FRAMEWORKS else spec.framework


def _given(*path: str) -> Callable[[JobSpec], Any]:
    def value(spec: JobSpec) -> Any:
        here: Any = spec
        for part in path:
            here = getattr(here, part)
        return here

    return value


def _wish(spec: JobSpec) -> Any:
    return spec.placement.required or spec.placement.preferred


def _auto(spec: JobSpec) -> Any:
    return spec.checkpoint.every == "auto"


# Path, what makes it count as used, what is not there yet, what to write instead.
_NOT_YET: tuple[tuple[str, Callable[[JobSpec], Any], str, str], ...] = (
    ("class", _given("job_class"), "job classes", "remove it"),
    ("framework", _framework, "this framework", "write torch or none"),
    ("env_compat", _given("env_compat"), "other launchers' variables", "remove it"),
    ("image", _given("image"), "container images", "remove it"),
    ("resources.nodes", _elastic, "elastic jobs", "write one number"),
    ("resources.cpus", _cpu_range, "ranges of CPUs", "write one number"),
    ("resources.memory", _given("resources", "memory"), "memory requests", "remove it"),
    ("resources.shm", _given("resources", "shm"), "shared memory requests", "remove it"),
    ("resources.accelerator", _given("resources", "accelerator"), "accelerators", "remove it"),
    (
        "resources.accelerator_memory",
        _given("resources", "accelerator_memory"),
        "accelerators",
        "remove it",
    ),
    ("roles", _given("roles"), "gangs of several shapes", "use `run` and `resources`"),
    ("data", _given("data"), "staged inputs", "let the script read its data itself"),
    ("placement", _wish, "topology", "remove it"),
    ("checkpoint.every", _auto, "auto", "write a duration, `500 steps` or `1 epoch`"),
    ("stall", _given("stall"), "stall detection", "remove it"),
    ("secrets", _given("secrets"), "stored secrets", "use `phalanx run --env NAME`"),
    ("mounts", _given("mounts"), "mounts", "remove it"),
    ("budget", _given("budget"), "cost limits", "remove it or use `max_duration`"),
    ("depends_on", _given("depends_on"), "dependencies", "use `phalanx wait` in between"),
    ("array", _given("array"), "job arrays", "submit one job for each index"),
    ("schedule", _given("schedule"), "schedules", "let cron call `phalanx submit`"),
)


def check_supported(spec: JobSpec) -> list[Problem]:
    """One problem for every field that is used and not built yet; empty when all is well."""
    problems = [
        Problem(path, f"not yet supported: {what}; {instead}")
        for path, used, what, instead in _NOT_YET
        if used(spec)
    ]
    if spec.run is None and not spec.roles:
        problems.append(Problem("run", "is required: the command of every rank"))
    return problems
