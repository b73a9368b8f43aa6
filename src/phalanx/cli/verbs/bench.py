"""The verb bench: performance measurements of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.measuring import figures, run_to_end, shape
from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.bench_plot import bars, svg
from phalanx.cli.terminal.options import AsJson
from phalanx.core.telemetry.scaling import ScalingRow, in_words, rows
from phalanx.errors import UserError
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.sdk import PhalanxClient

_MODULE = "phalanx.train.programs.recipes.scaling"
_NAMES = ("bench_step_seconds", "bench_global_batch")
bench_app = typer.Typer(name="bench", no_args_is_help=True, help="Measure the machines of a pool.")


@bench_app.callback()
def bench() -> None:
    """Measure the machines of a pool."""


ModelOption = Annotated[
    str, typer.Option("--model", help="A model that `phalanx recipe flags` lists.")
]
CountsOption = Annotated[
    str,
    typer.Option(
        "--counts", "--gpu-counts", help="Numbers of ranks to measure, separated by commas."
    ),
]
BatchSizeOption = Annotated[
    int, typer.Option("--batch-size", min=1, help="Samples per rank and step.")
]
StepsOption = Annotated[
    int, typer.Option("--steps", min=3, help="Steps to measure at each number of ranks.")
]
ImageSizeOption = Annotated[
    int, typer.Option("--image-size", min=16, help="Height and width of images.")
]
ScaleOption = Annotated[
    float, typer.Option("--scale", min=0.05, help="Factor on the width of the model.")
]
PrecisionOption = Annotated[str, typer.Option("--precision", help="fp32, bf16 or fp16.")]
PerNodeOption = Annotated[
    int | None, typer.Option("--per-node", min=1, help="Maximum number of ranks on a node.")
]
EpochSamplesOption = Annotated[
    int,
    typer.Option("--epoch-samples", min=1, help="Samples of an epoch, for its time and cost."),
]
PriceOption = Annotated[
    float | None,
    typer.Option("--price", min=0, help="US dollars per slot and hour; default: the pool's."),
]
PoolOption = Annotated[str | None, typer.Option("--pool", help="The pool to measure.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="Write a plot to this SVG file."),
]


@bench_app.command("scaling")
def scaling(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    model: ModelOption = "resnet50",
    counts: CountsOption = "1,2,4,8",
    batch_size: BatchSizeOption = 8,
    steps: StepsOption = 20,
    image_size: ImageSizeOption = 32,
    scale: ScaleOption = 1.0,
    precision: PrecisionOption = "fp32",
    per_node: PerNodeOption = None,
    epoch_samples: EpochSamplesOption = 1_281_167,
    price: PriceOption = None,
    pool: PoolOption = None,
    plot: PlotOption = None,
    json: AsJson = False,
) -> None:
    """Train the same model on 1, 2, 4 … ranks; print throughput, speed-up, efficiency and cost."""
    numbers = _numbers(counts)
    if plot is not None and not plot.absolute().parent.is_dir():
        raise UserError(f"--plot {plot}: there is no folder {plot.absolute().parent}")
    session: Session = ctx.obj
    words = ["--model", model, "--batch-size", str(batch_size), "--steps", str(steps)]
    words += ["--image-size", str(image_size), "--scale", str(scale), "--precision", precision]
    found: dict[int, float] = {}
    batches: dict[int, int] = {}
    with session.client() as client:
        for count in numbers:
            output.note(f"{model} on {count} rank{'s' if count > 1 else ''} …")
            part = _part(count, per_node, pool)
            try:
                view, ran_in = run_to_end(session, client, _MODULE, words, part)
            except UserError as error:  # refused, or no pool is large enough
                if not found:
                    raise
                output.note(f"{count} ranks cannot be placed: {error}")
                break
            if price is None:
                price = _price(client, ran_in or pool)
            step_s, batch = figures(client, view, _NAMES)
            found[count], batches[count] = step_s, int(batch)
    table = rows(found, batches, epoch_samples, price)
    drawn = plot is not None and _draw(plot, svg(table, model))
    if json:
        output.as_json([_plain(row) for row in table])
        return
    _print(table)
    if drawn:
        print(f"figure: {plot}")


def _draw(plot: Path, text: str) -> bool:
    try:
        plot.write_text(text)
        return True
    except OSError as error:
        # The measurement took minutes, so its results are printed all the same.
        output.note(f"--plot {plot}: cannot be written: {error.strerror}")
        return False


def _numbers(text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UserError(f"--counts {text}: must be numbers of ranks, such as 1,2,4,8")
    return found


def _part(count: int, per_node: int | None, pool: str | None) -> dict[str, Any]:
    return {
        "name": f"bench-scaling-{count}",
        "resources": shape(count, per_node),
        "labels": {"bench": "scaling"},
        **({} if pool is None else {"pool": [pool]}),
    }


def _price(client: PhalanxClient, pool: str | None) -> float | None:
    """The price of a pool's slot for an hour; None when it has none."""
    found = next((one.price for one in client.pools() if one.name == pool), None)
    return found or None


def _plain(row: ScalingRow) -> dict[str, float | int | None]:
    body = asdict(row)
    cost = body.pop("cost")
    return {**body, "cost_per_epoch": cost}


def _print(table: Sequence[ScalingRow]) -> None:
    drawn = bars([row.speed_up for row in table], [float(row.ranks) for row in table])
    shown = [
        (
            row.ranks,
            f"{row.samples_per_s:.1f}",
            f"{row.step_s * 1e3:.1f} ms",
            f"{row.speed_up:.2f}",
            f"{row.efficiency:.0%}",
            format_duration(row.epoch_s),
            "-" if row.cost is None else f"${row.cost:,.2f}",
            bar,
        )
        for row, bar in zip(table, drawn, strict=True)
    ]
    heads = ("RANKS", "SAMPLES/S", "STEP", "SPEED-UP", "EFFICIENCY", "EPOCH", "COST/EPOCH", "")
    output.table(heads, shown, "nothing was measured")
    print(in_words(list(table)))
