"""The training dashboard: curves, throughput, time, memory and cost of the chosen jobs."""

from __future__ import annotations

from dashboards.panels import (
    CHOSEN,
    JOB,
    TO_JOB,
    Board,
    Panel,
    increase,
    jobs_of,
    one_of,
    quantiles,
    rate,
    ratio,
)

_BY_JOB = "project, phalanx_job"
_POOL = 'pool=~"$pool"'
_SPENT = 'phalanx_cost_usd_total{project=~"$project"}'


def _gauge(name: str, *more: str) -> str:
    return one_of(jobs_of(name, *more))


def _share(part: str) -> str:
    """Time of a section of the step by the whole time of the steps, of all ranks."""
    return ratio(
        f"sum by ({_BY_JOB}) ({rate(jobs_of(f'{part}_sum'))})",
        f"sum by ({_BY_JOB}) ({rate(jobs_of('step_time_seconds_sum'))})",
    )


CURVES = (
    Panel(
        "Loss",
        "Newest loss of rank 0. NaN or a jump: see refused steps for on-call; the run can go back to"
        " a checkpoint with `phalanx clone JOB --from-checkpoint`.",
        "short",
        ((_gauge("training_loss"), JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Accuracy",
        "Newest accuracy of rank 0. Flat while the loss falls: the metric is of another set, or the "
        "model overfits.",
        "percentunit",
        ((_gauge("training_accuracy"), JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Slope of the loss",
        "Change of the loss per second over half an hour. Above 0: the run does not converge; stop "
        "it or lower its learning rate.",
        "short",
        ((one_of(f"deriv({jobs_of('training_loss')}[30m])"), JOB),),
        red_above=0,
        link=TO_JOB,
    ),
    Panel(
        "Metrics of the script",
        "Everything that the script logs on rank 0, 20 names of a job. A name is missing: the script"
        " logs more than that.",
        "short",
        ((_gauge("training_metric"), "{{phalanx_job}} {{name}}"),),
        link=TO_JOB,
    ),
)

PROGRESS = (
    Panel(
        "Samples per second",
        "Samples of all ranks of a job. A fifth below yesterday at the same code: look for a "
        "straggler, for data, for the network.",
        "short",
        (
            (
                "sum by (project, phalanx_job) (max without (instance, pod) "
                f"({jobs_of('training_throughput_samples_per_sec')}))",
                JOB,
            ),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Steps per second",
        "Optimizer steps. 0 while the job runs: an evaluation, a save, or a stall; `phalanx stacks JOB`.",
        "short",
        ((f"max by ({_BY_JOB}) ({_gauge('training_steps_per_sec')})", JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Steps done",
        "Steps done, and the step of the newest good checkpoint. A step down is a recovery; a flat "
        "line of the checkpoint is a risk.",
        "short",
        (
            (_gauge("training_step"), f"{JOB} step"),
            (_gauge("phalanx_job_checkpoint_step"), f"{JOB} checkpoint"),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Epochs",
        "Epochs begun. It tells how long the rest takes: `phalanx show JOB` has the expected end.",
        "short",
        ((_gauge("training_epoch"), JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Restarts and placements",
        "Charged restarts, and placements. More of the latter: the job made room for others, which "
        "costs no budget.",
        "short",
        (
            (_gauge("phalanx_job_restarts_total"), f"{JOB} restarts"),
            (_gauge("phalanx_job_attempts_total"), f"{JOB} placements"),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Ranks and slots",
        "Ranks of each job, and slots that it holds. Slots without steps: the job starts or "
        "recovers, see its page.",
        "short",
        (
            (_gauge("phalanx_job_ranks"), f"{JOB} ranks"),
            (_gauge("phalanx_job_slots"), f"{JOB} slots"),
        ),
        link=TO_JOB,
    ),
)

TIME = (
    Panel(
        "Step time",
        "Time from one step to the next. A p95 above twice the median: saves, evaluations or "
        "stragglers; see the debug dashboard.",
        "s",
        quantiles(jobs_of("step_time_seconds_bucket"), _BY_JOB, legend=JOB),
        link=TO_JOB,
    ),
    Panel(
        "Share of communication",
        "Share of the step that waits for gradients. Red: compression, accumulation, or a placement "
        "on fewer nodes.",
        "percentunit",
        ((_share("communication_time_seconds"), JOB),),
        red_above=0.3,
        link=TO_JOB,
        most=1,
    ),
    Panel(
        "Share of data",
        "Share of the step that waits for the loader. Red: more workers, a cache, or decoded data.",
        "percentunit",
        ((_share("data_loading_time_seconds"), JOB),),
        red_above=0.1,
        link=TO_JOB,
        most=1,
    ),
    Panel(
        "Share of computation",
        "Share of the step in forward and backward passes. Low while the other shares are low, too: "
        "the script does something of its own between steps; `phalanx profile JOB`.",
        "percentunit",
        ((_share("computation_time_seconds"), JOB),),
        link=TO_JOB,
        most=1,
    ),
)

RESOURCES = (
    Panel(
        "Device utilisation",
        "Mean share of the time in which the devices of a job were busy. Low: see the shares of data"
        " and communication beside it.",
        "percent",
        ((f"avg by ({_BY_JOB}) ({_gauge('gpu_utilization_percent')})", JOB),),
        red_below=50,
        link=TO_JOB,
        most=100,
    ),
    Panel(
        "Device memory",
        "Memory in use of the fullest device of a job. Near its size: the next larger batch fails.",
        "mbytes",
        ((f"max by ({_BY_JOB}) ({_gauge('gpu_memory_used_mb')})", JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Host memory",
        "Memory of all processes of a job's ranks. It rises without end: a leak; see the memory of "
        "ranks on the debug dashboard.",
        "bytes",
        ((f"sum by ({_BY_JOB}) ({_gauge('process_resident_memory_bytes')})", JOB),),
        link=TO_JOB,
    ),
    Panel(
        "Slots by pool",
        "Slots that the chosen jobs hold in each pool. Not where the job should be: `placement` in "
        "its spec.",
        "short",
        (
            (
                f"sum by (pool) ({_gauge('phalanx_job_slots')} "
                f"* on (project, phalanx_job) group_left (pool) max by (project, phalanx_job, pool) "
                f"({jobs_of('phalanx_job_info', _POOL)}))",
                "{{pool}}",
            ),
        ),
        kind="areas",
    ),
    Panel(
        "Projected cost of a day",
        "Twenty-four times the cost of the project in the last hour, of what has ended. Above the "
        "budget: `phalanx estimate` before the next job, `phalanx budgets` for the limit.",
        "currencyUSD",
        (
            (
                f"24 * sum by (project) ({increase(_SPENT, '1h')})",
                "{{project}}",
            ),
        ),
    ),
    Panel(
        "Chosen jobs by state",
        "Live jobs among those chosen above. Empty: the choice of project, pool or job fits no live job.",
        "short",
        (
            (
                f"count by (state) (max without (instance, pod) (phalanx_job_info{{{CHOSEN}}}))",
                "{{state}}",
            ),
        ),
        kind="number",
    ),
)

BOARD = Board(
    uid="phalanx-training",
    title="Phalanx: training",
    text="Curves, throughput, time, memory and cost of the chosen jobs.",
    rows=(
        ("Curves", CURVES),
        ("Progress", PROGRESS),
        ("Time of a step", TIME),
        ("Resources", RESOURCES),
    ),
    of_jobs=True,
)
