"""Hooks in the processes of a Ray script: its reports become metrics, its runs resumable.

`python -m phalanx.train.frameworks.ray.hooks X …` runs the user's script X with them.

Nothing of Ray is imported before the script does it: functions are replaced right after the import.
"""

from __future__ import annotations

import functools
import json
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.train.frameworks import hooked_script
from phalanx.train.frameworks.hooked_script import Patch, run_script
from phalanx.train.frameworks.ray.searches import Searches

SOCKET_VARIABLE = "PHALANX_RAY_REPORTS"
STORE_VARIABLE = "PHALANX_RAY_STORE"
# Options of `ray.init` that Ray refuses where a cluster exists already.
_OF_A_NEW_CLUSTER = frozenset(
    {"num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "_system_config"}
)


def install() -> None:
    """Install the hooks in a Ray worker or in the script's own process."""
    patches: dict[str, Patch] = {"ray.train": _train, "ray.tune": _tune}
    if store := _variable(STORE_VARIABLE):
        patches |= {"ray.train.constants": _store, "ray.train.v2.api.config": _run_name}
        patches |= {"ray": _init, **Searches(Path(store)).patches()}
    hooked_script.install(patches)


def _variable(name: str) -> str:
    return os.environ.get(name, "")  # noqa: TID251 - runs in the processes of Ray's workers


# -- reports -------------------------------------------------------------------------------------


def _train(module: ModuleType) -> None:
    told = [0]

    def tell(metrics: Mapping[str, Any]) -> None:
        if module.get_context().get_world_rank() == 0:
            told[0] += 1
            send(told[0], metrics, "")

    module.report = _reporting(module.report, tell)  # type: ignore[attr-defined]


def _tune(module: ModuleType) -> None:
    told: dict[str, int] = {}

    def tell(metrics: Mapping[str, Any]) -> None:
        trial = str(module.get_context().get_trial_id())
        told[trial] = told.get(trial, 0) + 1
        send(told[trial], metrics, f"{trial}/")

    module.report = _reporting(module.report, tell)  # type: ignore[attr-defined]


def _reporting(
    report: Callable[..., Any], tell: Callable[[Mapping[str, Any]], None]
) -> Callable[..., Any]:
    """Wrap a report function so that it also sends; errors of sending are printed."""

    @functools.wraps(report)
    def reporting(metrics: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        result = report(metrics, *args, **kwargs)
        try:
            tell(metrics)
        except Exception as error:
            print(f"phalanx: a report could not be sent: {error}", file=sys.stderr)  # noqa: T201
        return result

    return reporting


def send(step: int, metrics: Mapping[str, Any], prefix: str) -> None:
    """Send the numbers among `metrics` to the rank of this node."""
    path = _variable(SOCKET_VARIABLE)
    values = {f"{prefix}{name}": _number(value) for name, value in metrics.items()}
    body = {"step": step, "v": {k: v for k, v in values.items() if v is not None}}
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(json.dumps(body).encode(), path)


def _number(value: Any) -> float | str | None:
    """Convert a number for a report file; None for other values."""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else str(number)


# -- resuming ------------------------------------------------------------------------------------


def _store(module: ModuleType) -> None:
    """Store results with the job's checkpoints, where the script names no folder."""
    module.DEFAULT_STORAGE_PATH = _variable(STORE_VARIABLE)  # type: ignore[attr-defined]


def _run_name(module: ModuleType) -> None:
    """Give an unnamed run the same name in every attempt, so that it resumes."""
    module.date_str = lambda *_args, **_kwargs: _variable("PHALANX_JOB")  # type: ignore[attr-defined]


def _init(module: ModuleType) -> None:
    """Let `ray.init(num_cpus=…)` join the job's cluster, which has its resources already."""
    init: Callable[..., Any] = module.init

    @functools.wraps(init)
    def joining(address: str | None = None, **options: Any) -> Any:
        if address in (None, "auto") and _variable("RAY_ADDRESS"):
            for name in _OF_A_NEW_CLUSTER & options.keys():
                value = options.pop(name)
                if value is not None:
                    text = f"phalanx: {name}={value} is not used: the job has its own Ray cluster"
                    print(text, file=sys.stderr, flush=True)  # noqa: T201
        return init(address, **options)

    module.init = joining  # type: ignore[attr-defined]


# -- the script ----------------------------------------------------------------------------------


def main() -> None:
    """Run a script, or a module after `-m`, with the hooks."""
    install()
    run_script(sys.argv[1:])


if __name__ == "__main__":
    main()
