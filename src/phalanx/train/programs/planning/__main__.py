"""`phalanx plan SCRIPT --world 8xH100`: what every layout of a script would need, before it runs."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.core.training import estimates
from phalanx.core.training.estimates import DeviceSet, LayoutChoice, LayoutEstimate, ModelProfile
from phalanx.errors import PlatformError, UserError
from phalanx.kit.units import parse_size
from phalanx.train import start
from phalanx.train.parallel import model_costs
from phalanx.train.programs import argument
from phalanx.train.programs.planning.planning_run import PlanningComplete, PlanningRun

_HEAD = ("layout", "parameters", "gradients", "optimizer", "other", "activations", "total", "step")


_SIZES = ("parameter", "gradient", "optimizer", "gathered", "activation", "total")
# The keys of a layout in JSON, each with the estimate's attribute.
_ROW = {
    **{name: name for name in ("fits", "limit_bytes", "step_s", "compute_s")},
    **{f"{name}_bytes": f"{name}_bytes" for name in _SIZES if name != "gathered"},
    "strategy": "name",
    "other_bytes": "gathered_bytes",
    "exposed_communication_s": "exposed_s",
    "pipeline_bubble": "bubble",
}


@dataclass(frozen=True, slots=True)
class ScriptSurvey:
    """The costs that a script showed, and the error that ended it early."""

    outline: ModelProfile
    num_parameters: int
    asked: str
    problem: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan one script; returns the exit code: 0 good, 1 wrong use or a script that fails."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    rest: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    try:
        given = _parser().parse_args(words)
    except SystemExit as stop:
        return 1 if stop.code else 0
    try:
        world = given.world
        if given.memory is not None:
            device = estimates.with_memory(world.device, given.memory)
            world = replace(world, device=device)
        look = survey_script(
            given.script, rest, world, nullcontext if given.real else model_costs.meta_parameters
        )
    except PlatformError as error:
        sys.stderr.write(f"phalanx plan: {error}\n")
        return error.exit_code
    choice = estimates.recommend(world, look.outline)
    body = as_json(choice, world, look)
    sys.stdout.write(
        (json.dumps(body, indent=2) if given.json else table(choice, world, look)) + "\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx plan",
        description="Memory and step time of a script by layout, estimated before anything runs."
        " The script runs up to its first optimizer step, without memory for its model.",
        epilog="Arguments of the script follow after `--`.",
    )
    parser.add_argument("script", type=Path, help="a training script that uses phalanx.train")
    known = (
        f"devices as in 8xH100, or nodes too as in 4x8xA100; known: {', '.join(estimates.DEVICES)}"
    )
    world = argument(estimates.parse_devices)
    parser.add_argument("--world", type=world, required=True, help=known)
    memory = "memory of one device, such as 40GB; default: that of the known device"
    parser.add_argument("--memory", type=argument(parse_size), help=memory)
    parser.add_argument(
        "--real",
        action="store_true",
        help="build the model with memory: for scripts that read weights",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def survey_script(
    script: Path,
    arguments: Sequence[str],
    world: DeviceSet,
    around: Callable[[], AbstractContextManager[None]] = model_costs.meta_parameters,
) -> ScriptSurvey:
    """Run a script up to its first optimizer step, in a context that `around` makes.

    Raises UserError for a script that fails before `run.prepare`, or never calls it.
    """
    if not script.is_file():
        raise UserError(f"{script} is not a file", "name a training script")
    made: list[PlanningRun] = []

    def stand_in(options: Any) -> PlanningRun:
        made.append(PlanningRun(options, world.num_ranks))
        return made[-1]

    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:] = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    problem = ""
    # What the script prints is not the plan.
    aside = redirect_stdout(sys.stderr)
    with aside, start.standing_in(stand_in), around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(str(script), run_name="__main__")
        except PlanningComplete:
            pass
        except SystemExit as left:
            problem = f"the script exited with {left.code}" if left.code else ""
        except Exception as error:
            problem = _where(error, script)
        finally:
            sys.argv, sys.path[:] = before
            for one in made:
                one.gauge.stop()
    return _seen(made, script, problem)


def _seen(made: Sequence[PlanningRun], script: Path, problem: str) -> ScriptSurvey:
    sketch = next((one for one in made if one.models), None)
    if sketch is None:
        why = problem or "the script did not call run.prepare with a model"
        raise UserError(
            f"{script}: {why}",
            "planning needs a model given to run.prepare; --real builds the model with memory",
        )
    num = sum(one.numel() for model in sketch.models for one in model.parameters())
    return ScriptSurvey(sketch.outline(), num, str(sketch.options.strategy), problem)


def _where(error: Exception, script: Path) -> str:
    """Format an error of the script in one line."""
    calls = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in calls if Path(one.filename).name == script.name]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


# -- what is printed -----------------------------------------------------------------------------


def as_json(choice: LayoutChoice, world: DeviceSet, look: ScriptSurvey) -> dict[str, Any]:
    """Return the plan as JSON. Bytes are of the rank that needs most, seconds of one step."""
    device = world.device
    return {
        "world": {
            "nodes": world.nodes,
            "slots_per_node": world.slots_per_node,
            "device": device.name,
            "memory_bytes": device.memory_bytes,
        },
        "model": {"num_parameters": look.num_parameters, **asdict(look.outline)},
        "problem": look.problem or None,
        "recommended": choice.best.name,
        "why": choice.why,
        "layouts": [{key: getattr(one, name) for key, name in _ROW.items()} for one in choice.all],
    }


def table(choice: LayoutChoice, world: DeviceSet, look: ScriptSurvey) -> str:
    """Return the plan as a table: the layouts that fit or come closest, and the recommended one."""
    outline = look.outline
    memory = world.device.memory_bytes
    lines = [
        f"{look.num_parameters / 1e6:,.1f} million parameters, batch {outline.batch} a rank,"
        f" {outline.precision}, on {world} of {memory / 1e9:.0f} GB",
        "",
    ]
    rows = [_HEAD] + [_cells(one, choice) for one in choice.all]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines += [
        "",
        "* does not fit. Memory: GiB of one rank, estimated. Time: a rough estimate.",
        "",
    ]
    if look.problem:
        lines.append(f"The script did not reach the end of a step: {look.problem}")
    lines += [f"Recommended: {choice.best.name}", f"  {choice.why}"]
    if look.asked != choice.best.name:
        lines.append(f"  the script itself asks for {look.asked}")
    if not outline.tp_part:
        lines.append("  tp was not considered: there is no tp_plan")
    if not outline.layer_bytes:
        lines.append(
            "  pp was not considered: the model is not an nn.Sequential and has no pipeline_layers"
        )
    return "\n".join(lines)


def _cells(one: LayoutEstimate, choice: LayoutChoice) -> tuple[str, ...]:
    sizes = [getattr(one, f"{name}_bytes") for name in _SIZES]
    mark = ">" if one is choice.best else " "
    texts = ["?" if size is None else f"{size / estimates.GIB:.2f}" for size in sizes]
    texts[-1] += " " if one.fits else "*"
    step = "?" if one.step_s is None else _seconds(one.step_s)
    return (f"{mark} {one.name}", *texts, step)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
