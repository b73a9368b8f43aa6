"""The on-call dashboard: what fails now, what stands still, what can be lost."""

from __future__ import annotations

from dashboards.panels import (
    JOB,
    TO_JOB,
    Board,
    Panel,
    increase,
    one_of,
    quantiles,
    rate,
    ratio,
)

_HOUR = "1h"
NODE = "{{node}}"
_FAILED = 'phalanx_jobs_finished_total{state="failed"}'
_CORRUPT = 'phalanx_checkpoints_total{outcome="quarantined"}'
_NOT_COPIED = 'phalanx_checkpoint_copies_total{outcome="failed"}'
_BY_JOB = "project, phalanx_job"

NOW = (
    Panel(
        "Control planes",
        "Control planes that live, and those that lead. Leaders not 1: no job starts or recovers; "
        "see the dashboard of the control plane, and `phalanx doctor`.",
        "short",
        (
            (f"max({one_of('phalanx_replicas')})", "alive"),
            ("sum(phalanx_leader)", "leading"),
        ),
        kind="number",
        red_below=1,
    ),
    Panel(
        "Failed jobs in an hour",
        "Jobs that ended as failed. Red: `phalanx ps --state failed`, then `phalanx show JOB` for "
        "the first failing rank and its traceback.",
        "short",
        ((f"sum({increase(_FAILED, _HOUR)})", "failed"),),
        kind="number",
        red_above=3,
    ),
    Panel(
        "Jobs that recover",
        "Jobs between a failure and the next step. Many at once: a node, the network or the storage,"
        " not the jobs; look at nodes lost and failures by cause.",
        "short",
        ((one_of('phalanx_jobs{state="recovering"}'), "recovering"),),
        kind="number",
        red_above=5,
    ),
    Panel(
        "Commands that wait",
        "Age of the oldest command to an executor that is not done. Red: the executor's cluster does"
        " not answer; `phalanx doctor` tells which.",
        "s",
        ((one_of("phalanx_commands_oldest_seconds"), "oldest"),),
        kind="number",
        red_above=300,
    ),
)

FAILURES = (
    Panel(
        "Failures by cause",
        "First failures of the ranks of a node in an hour. `oom`: less batch or more memory; "
        "`node_lost`: drain the node; `user_error`: the script, and no action of yours.",
        "short",
        ((f"sum by (cause) ({increase('phalanx_failures_total', _HOUR)})", "{{cause}}"),),
        kind="areas",
    ),
    Panel(
        "Restarts by cause",
        "Restarts in an hour, those that made room included. Steady restarts of one cause use up the"
        " budgets of jobs, which then fail: find the job in the next panel.",
        "short",
        ((f"sum by (cause) ({increase('phalanx_restarts_total', _HOUR)})", "{{cause}}"),),
        kind="areas",
    ),
    Panel(
        "Jobs with the most restarts",
        "Charged restarts of live jobs. At the top and growing: `phalanx show JOB`; pause it with "
        "`phalanx pause` when it cannot recover by itself.",
        "short",
        ((f"topk(10, {one_of('phalanx_job_restarts_total')})", JOB),),
        kind="bars",
        red_above=3,
        link=TO_JOB,
    ),
    Panel(
        "Start failures",
        "Supervisors and ranks that could not be started, in an hour. Red: images, packages, secrets"
        " or quotas of the cluster; `phalanx show JOB` has the message of the executor.",
        "short",
        ((f"sum by (cause) ({increase('phalanx_start_failures_total', _HOUR)})", "{{cause}}"),),
        red_above=3,
    ),
    Panel(
        "Out of memory",
        "Failures because memory was exhausted, in an hour. Red: lower the batch size or the number "
        "of loader workers, or ask for more memory; the debug dashboard has the memory of each rank.",
        "short",
        ((f"sum({increase('phalanx_oom_kills_total', _HOUR)})", "out of memory"),),
        red_above=1,
    ),
    Panel(
        "Stalls and overdue stops",
        "Generations without a step, and stops that ranks did not follow, in an hour. Red: `phalanx "
        "stacks JOB` shows where the ranks stand; mostly a collective that one rank did not join.",
        "short",
        (
            (f"sum({increase('phalanx_stalls_total', _HOUR)})", "stalls"),
            (f"sum({increase('phalanx_stops_overdue_total', _HOUR)})", "overdue stops"),
        ),
        red_above=1,
    ),
    Panel(
        "Time to recover",
        "Time from a failure until all ranks run again, where slots were kept, over an hour. Above "
        "two minutes: look at the time to read a checkpoint, and at the start of ranks.",
        "s",
        quantiles("phalanx_recovery_seconds_bucket", "", _HOUR),
        red_above=120,
    ),
    Panel(
        "Preemptions by cause",
        "Requests to leave slots, in an hour. Many `preempted`: projects fight for the same slots, "
        "see quotas; `node_drained` is maintenance.",
        "short",
        ((f"sum by (cause) ({increase('phalanx_preemptions_total', _HOUR)})", "{{cause}}"),),
        kind="areas",
    ),
    Panel(
        "Warnings and refused steps",
        "Warnings of ranks and supervisors, and steps that a guard refused, in an hour. Growing: "
        "`phalanx events JOB` has their texts; refused steps are NaN or spikes of the loss.",
        "short",
        (
            (f"sum({increase('phalanx_warnings_total', _HOUR)})", "warnings"),
            (
                f"sum by (action) ({increase('phalanx_guard_actions_total', _HOUR)})",
                "guard: {{action}}",
            ),
        ),
    ),
)

CHECKPOINTS = (
    Panel(
        "Checkpoints",
        "Checkpoints in an hour by outcome. Any `quarantined`: the storage or a node corrupts files;"
        " stop placing jobs there and run `phalanx checkpoints JOB`.",
        "short",
        ((f"sum by (outcome) ({increase('phalanx_checkpoints_total', _HOUR)})", "{{outcome}}"),),
        kind="areas",
    ),
    Panel(
        "Checkpoints that failed",
        "Corrupt checkpoints, saves and copies that failed, in an hour. Red: what would be lost "
        "stands in `Steps at risk`; check free space and rights of the storage.",
        "short",
        (
            (
                f"sum({increase(_CORRUPT, _HOUR)})",
                "quarantined",
            ),
            (f"sum by (save) ({increase('phalanx_save_failures_total', _HOUR)})", "save: {{save}}"),
            (f"sum({increase(_NOT_COPIED, _HOUR)})", "copy"),
        ),
        red_above=1,
    ),
    Panel(
        "Steps at risk",
        "Steps since the newest good checkpoint of each job. Growing without a step back: its saves "
        "do not end; `phalanx checkpoints JOB`, and `phalanx checkpoints save JOB` to ask for one "
        "now.",
        "short",
        (
            (
                f"topk(20, {one_of('training_step')} - {one_of('phalanx_job_checkpoint_step')})",
                JOB,
            ),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Resumes",
        "Resumes in an hour by outcome. `failed`: no checkpoint of the job could be read; see "
        "quarantined ones. `not_exact`: another world size or another library version.",
        "short",
        ((f"sum by (outcome) ({increase('phalanx_resumes_total', _HOUR)})", "{{outcome}}"),),
        kind="areas",
    ),
)

CAPACITY = (
    Panel(
        "Slots in use by pool",
        "Share of the slots that jobs hold. At 1 for long while jobs with guarantees wait: the pool "
        "is exhausted; add nodes or preempt with `phalanx why JOB`.",
        "percentunit",
        (
            (
                f"1 - {one_of('phalanx_pool_slots_free')} / ({one_of('phalanx_pool_slots')} > 0)",
                "{{pool}}",
            ),
        ),
        most=1,
    ),
    Panel(
        "Queue",
        "Queued jobs, and the slots that they ask for. Growing for hours: see the waits on the "
        "executive dashboard, and which pool is full.",
        "short",
        (
            (f"max({one_of('phalanx_queue_length')})", "jobs"),
            (f"max({one_of('phalanx_queue_slots')})", "slots"),
        ),
    ),
    Panel(
        "Oldest queued job",
        "Age of the oldest queued job. Red: `phalanx ps --state queued`, then `phalanx why JOB`.",
        "s",
        ((f"max({one_of('phalanx_queue_oldest_seconds')})", "age"),),
        red_above=86_400,
    ),
    Panel(
        "Nodes by state",
        "Nodes of all pools. `quarantined` grows: nodes that fail jobs again and again; `phalanx "
        "nodes` has the reason of each.",
        "short",
        ((f"sum by (state) ({one_of('phalanx_pool_nodes')})", "{{state}}"),),
        kind="areas",
    ),
    Panel(
        "Nodes lost",
        "Supervisors that died with their ranks, in an hour. Red: find the node in `phalanx nodes`, "
        "drain it with `phalanx nodes drain`, look at its kernel log.",
        "short",
        ((f"sum({increase('phalanx_nodes_lost_total', _HOUR)})", "lost"),),
        red_above=1,
    ),
    Panel(
        "Unhealthy devices",
        "Devices of each pool that are not offered. Red: `phalanx nodes` names them; drain the node "
        "and replace the device.",
        "short",
        ((one_of("phalanx_pool_unhealthy_devices"), "{{pool}}"),),
        red_above=1,
    ),
    Panel(
        "Gradients on the network",
        "Share of the step time of each job that waits for gradients. Above 0.3 for many jobs at "
        "once: the network is saturated, or a link is down.",
        "percentunit",
        (
            (
                ratio(
                    f"sum by ({_BY_JOB}) ({rate('communication_time_seconds_sum')})",
                    f"sum by ({_BY_JOB}) ({rate('step_time_seconds_sum')})",
                ),
                JOB,
            ),
        ),
        red_above=0.3,
        link=TO_JOB,
        most=1,
    ),
)

NODES = (
    Panel(
        "Processors of nodes",
        "Share of the processor time of each node with a job. At 1: loaders and other processes wait"
        " for one another; fewer workers, or more cores for each rank.",
        "percentunit",
        ((f"max by (node) ({one_of('phalanx_host_cpu_ratio')})", NODE),),
        red_above=0.95,
        most=1,
    ),
    Panel(
        "Memory of nodes",
        "Share of the memory of each node that is in use. Red: the kernel will end a process; see "
        "the memory of ranks on the debug dashboard.",
        "percentunit",
        (
            (
                ratio(
                    f"max by (node) ({one_of('phalanx_host_memory_used_bytes')})",
                    f"max by (node) ({one_of('phalanx_host_memory_bytes')})",
                ),
                NODE,
            ),
        ),
        red_above=0.95,
        most=1,
    ),
    Panel(
        "Network of nodes",
        "Bytes per second of each node. Near the speed of its link: the network is saturated; "
        "compress gradients, or place gangs on fewer nodes.",
        "Bps",
        (
            (
                f"max by (node) ({rate('phalanx_host_network_sent_bytes_total', '1m')})",
                f"{NODE} sent",
            ),
            (
                f"max by (node) ({rate('phalanx_host_network_received_bytes_total', '1m')})",
                f"{NODE} received",
            ),
        ),
    ),
    Panel(
        "Segments sent again",
        "TCP segments per second that were sent again. It rises with the traffic: a link loses "
        "packets; on one node only: its cable or its port.",
        "short",
        ((f"max by (node) ({rate('phalanx_host_tcp_retransmits_total', '1m')})", NODE),),
        red_above=100,
    ),
    Panel(
        "Disks of nodes",
        "Bytes per second read and written. High reads in every epoch: the data does not fit the "
        "memory; high writes: checkpoints, see the control plane's dashboard.",
        "Bps",
        (
            (f"max by (node) ({rate('phalanx_host_disk_read_bytes_total', '1m')})", f"{NODE} read"),
            (
                f"max by (node) ({rate('phalanx_host_disk_written_bytes_total', '1m')})",
                f"{NODE} written",
            ),
        ),
    ),
    Panel(
        "Free space of nodes",
        "Free bytes where the folder of the job is. Red: saves and staged inputs will fail; see "
        "retention, and old files of other programs.",
        "bytes",
        ((f"min by (node) ({one_of('phalanx_host_disk_free_bytes')})", NODE),),
        red_below=10_000_000_000,
    ),
)

BOARD = Board(
    uid="phalanx-on-call",
    title="Phalanx: on call",
    text="What fails, what stands still and what could be lost, for the person on call.",
    rows=(
        ("Now", NOW),
        ("Failures", FAILURES),
        ("Checkpoints", CHECKPOINTS),
        ("Capacity", CAPACITY),
        ("Nodes with jobs", NODES),
    ),
)
