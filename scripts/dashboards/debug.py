"""The debug dashboard: one job, rank by rank."""

from __future__ import annotations

from dashboards.panels import (
    JOB,
    RANK,
    TO_JOB,
    Board,
    Panel,
    increase,
    jobs_of,
    one_of,
    quantile,
    quantiles,
    rate,
    ratio,
)

_BY_JOB = "project, phalanx_job"
_BY_RANK = "project, phalanx_job, rank"


def _section(name: str) -> str:
    return one_of(jobs_of("phalanx_rank_section_seconds", f'section="{name}"'))


STEPS = (
    Panel(
        "Step times",
        "Steps of all ranks by their time. A second band above the first: some ranks or some steps "
        "are slow; the panels of ranks tell which.",
        "s",
        ((f"sum by (le) ({rate(jobs_of('step_time_seconds_bucket'))})", "{{le}}"),),
        kind="heatmap",
        link=TO_JOB,
    ),
    Panel(
        "Step time by rank, p95",
        "The 95th percentile of each rank. All ranks step together, so that all look slow when one "
        "is: compare the sections below, where only the slow rank stands out.",
        "s",
        ((quantile(0.95, jobs_of("step_time_seconds_bucket"), _BY_RANK), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Mean step time by rank",
        "Time of a step over the window. It grows over hours: look at memory, at the loader, and at "
        "clocks of the devices.",
        "s",
        (
            (
                ratio(
                    f"sum by ({_BY_RANK}) ({rate(jobs_of('step_time_seconds_sum'))})",
                    f"sum by ({_BY_RANK}) ({rate(jobs_of('step_time_seconds_count'))})",
                ),
                RANK,
            ),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Speed of ranks",
        "Computing speed against the fastest rank, which has 1. Red: a straggler; `phalanx show JOB`"
        " names its node, which can be drained with `phalanx nodes drain`.",
        "percentunit",
        ((one_of(jobs_of("straggler_score")), RANK),),
        red_below=0.8,
        link=TO_JOB,
        most=1,
    ),
    Panel(
        "Computation by rank",
        "Forward and backward passes of one step. One rank above the others: its device is slow, "
        "shared or hot; see the dashboard of devices.",
        "s",
        ((_section("computation"), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Forward and backward",
        "Passes of the newest sampled step, over the ranks. Backward far above twice the forward "
        "pass: recomputation, or gradients that wait.",
        "s",
        (
            (f"max by ({_BY_JOB}) ({one_of(jobs_of('forward_time_seconds'))})", f"{JOB} forward"),
            (f"max by ({_BY_JOB}) ({one_of(jobs_of('backward_time_seconds'))})", f"{JOB} backward"),
        ),
        link=TO_JOB,
    ),
)

COLLECTIVES = (
    Panel(
        "Wait for gradients",
        "Wait after the end of the backward pass, in one step. High: compress gradients, accumulate,"
        " or place the gang on fewer nodes.",
        "s",
        quantiles(jobs_of("communication_time_seconds_bucket"), _BY_JOB, legend=JOB),
        link=TO_JOB,
    ),
    Panel(
        "Exchange of gradients",
        "Time from the first gradients sent to the last ones received, overlap included. Far above "
        "the wait: the overlap hides it, and nothing needs to be done.",
        "s",
        quantiles(jobs_of("gradient_sync_time_seconds_bucket"), _BY_JOB, legend=JOB),
        link=TO_JOB,
    ),
    Panel(
        "Wait for gradients by rank",
        "The rank that waits least is the one that the others wait for: look at its node.",
        "s",
        ((_section("communication"), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Optimizer by rank",
        "Time of the optimizer in one step. Large against the computation: a fused optimizer, or "
        "shards of its state.",
        "s",
        ((_section("optimizer"), RANK),),
        link=TO_JOB,
    ),
)

DATA = (
    Panel(
        "Wait for data by rank",
        "Share of the time spent waiting for the loader. Red: more workers of the loader, a cache on"
        " the node, or decoded data; see the page about reading data.",
        "percentunit",
        ((one_of(jobs_of("data_wait_fraction")), RANK),),
        red_above=0.1,
        link=TO_JOB,
        most=1,
    ),
    Panel(
        "Loading of one step",
        "Wait for the loader in one step. A p95 far above the median: single slow files or a slow store.",
        "s",
        quantiles(jobs_of("data_loading_time_seconds_bucket"), _BY_JOB, legend=JOB),
        link=TO_JOB,
    ),
    Panel(
        "Samples per second by rank",
        "Samples of each rank. Unequal at equal batches: the rank is slow; unequal by intent where "
        "batches are split by measured speed.",
        "short",
        ((f"sum by ({_BY_RANK}) ({rate(jobs_of('training_samples_total'))})", RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Samples in an hour by rank",
        "Samples that each rank trained on. Bars of unequal length: data skew, or a rank that came "
        "back late.",
        "short",
        ((f"sum by ({_BY_RANK}) ({increase(jobs_of('training_samples_total'), '1h')})", RANK),),
        kind="bars",
        link=TO_JOB,
    ),
    Panel(
        "Skew of samples",
        "Samples of the rank with the most by those of the rank with the fewest. Red: check the "
        "sampler and the sizes of shards.",
        "short",
        (
            (
                f"max by ({_BY_JOB}) ({rate(jobs_of('training_samples_total'))}) / "
                f"(min by ({_BY_JOB}) ({rate(jobs_of('training_samples_total'))}) > 0)",
                JOB,
            ),
        ),
        red_above=1.5,
        link=TO_JOB,
    ),
)

MEMORY = (
    Panel(
        "Memory of ranks",
        "Memory of each rank's process. A line that only rises: a leak, mostly a list of tensors "
        "with their graphs, or a loader that keeps what it read.",
        "bytes",
        ((one_of(jobs_of("process_resident_memory_bytes")), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Peak of the allocator",
        "Peak of torch's allocator on each device. Near the size of the device: lower the batch, or "
        "recompute activations.",
        "mbytes",
        ((one_of(jobs_of("gpu_memory_allocated_mb")), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Out of memory by day",
        "Failures of all jobs because memory was exhausted. Not 0: `phalanx show JOB` says whether "
        "the host or the device had no memory left.",
        "short",
        ((f"sum({increase('phalanx_oom_kills_total', '1d')})", "out of memory"),),
        red_above=1,
    ),
    Panel(
        "Pause for a save",
        "Pause of training for one checkpoint. Above a few steps: save in the background, less "
        "often, or `auto`.",
        "s",
        ((quantile(0.95, jobs_of("checkpoint_stall_seconds_bucket"), _BY_JOB, "1h"), JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Ranks without series",
        "Ranks beyond the limits of a scrape. Not 0: the panels above show the first ranks only; "
        "`phalanx metrics JOB` has all.",
        "short",
        (
            (f"max({one_of('phalanx_ranks_not_shown')})", "ranks"),
            (f"max({one_of('phalanx_jobs_not_shown')})", "jobs"),
        ),
    ),
)

BOARD = Board(
    uid="phalanx-debug",
    title="Phalanx: debug",
    text="Where the step of a job spends its time, rank by rank.",
    rows=(
        ("Steps", STEPS),
        ("Collectives", COLLECTIVES),
        ("Data", DATA),
        ("Memory", MEMORY),
    ),
    of_jobs=True,
    window="now-1h",
)
