"""The control plane's dashboard: replicas, loops, database, pools, quotas, retention."""

from __future__ import annotations

from dashboards.panels import Board, Panel, increase, one_of, quantiles, rate

_WHERE = "{{instance}}"

REPLICAS = (
    Panel(
        "Leading",
        "1 for the control plane that runs the loops. No 1: none could take the lease, see the "
        "database; two for longer than a scrape: clocks differ.",
        "short",
        (("phalanx_leader", _WHERE),),
    ),
    Panel(
        "Releases",
        "Control planes by release. Two releases outside of an upgrade: one pod was left behind.",
        "short",
        (("count by (version) (phalanx_build_info)", "{{version}}"),),
        kind="number",
    ),
    Panel(
        "Age of loops",
        "Time since the last completed step of each loop. Red: the loop hangs or its step takes "
        "minutes; `phalanx doctor`, then the log of the leader.",
        "s",
        (("max by (loop) (phalanx_loop_idle_seconds)", "{{loop}}"),),
        red_above=120,
    ),
    Panel(
        "Open requests",
        "Requests that are being answered, long polls included, and streams of events. Up to the "
        "limit: see request limits; a client that never reads holds one.",
        "short",
        (
            ("phalanx_requests_open", f"{_WHERE} requests"),
            ("phalanx_event_streams_open", f"{_WHERE} streams"),
        ),
    ),
    Panel(
        "Processor time",
        "Processors that each control plane keeps busy. Near 1: Python threads wait for one another;"
        " add a replica for the API.",
        "short",
        (("rate(phalanx_process_cpu_seconds_total[$__rate_interval])", _WHERE),),
        red_above=0.9,
    ),
    Panel(
        "Memory",
        "Resident memory. It rises for days: restart the replica, which the others stand in for, and"
        " report it.",
        "bytes",
        (("phalanx_process_resident_memory_bytes", _WHERE),),
    ),
    Panel(
        "File descriptors",
        "Share of the file descriptors that may be open. Red: raise the limit of the service.",
        "percentunit",
        (("phalanx_process_open_fds / phalanx_process_max_fds", _WHERE),),
        red_above=0.8,
        most=1,
    ),
    Panel(
        "Threads",
        "Threads of each control plane. It grows with open long polls and stays; a steady rise is a "
        "fault.",
        "short",
        (("phalanx_process_threads", _WHERE),),
    ),
    Panel(
        "Time since the start",
        "Back to 0: the process was restarted. Again and again: the log of the run before has the "
        "reason.",
        "s",
        (("time() - phalanx_process_start_time_seconds", _WHERE),),
        kind="number",
    ),
)

WORK = (
    Panel(
        "Events",
        "Events of jobs per second. The measure of the load of the database.",
        "short",
        ((f"max({rate('phalanx_events_total')})", "events per second"),),
    ),
    Panel(
        "Submissions and placements",
        "Jobs submitted and placed in an hour. Placements far above submissions: jobs restart or move.",
        "short",
        (
            (f"max({increase('phalanx_jobs_submitted_total', '1h')})", "submitted"),
            (f"max({increase('phalanx_attempts_total', '1h')})", "placed"),
        ),
    ),
    Panel(
        "Open commands",
        "Commands to executors that are not done. Grows: the executor is slow or away, see the age "
        "of the oldest one for on-call.",
        "short",
        ((f"max({one_of('phalanx_commands_open')})", "commands"),),
        red_above=200,
    ),
    Panel(
        "Time to start",
        "Time from placement until all ranks run, over an hour. Above five minutes: images and "
        "packages are pulled; see warm starts.",
        "s",
        quantiles("phalanx_start_seconds_bucket", "", "1h"),
        red_above=300,
    ),
    Panel(
        "Scrapes",
        "Time of the scrape before. Near the scrape interval: lower the limit of series, or scrape "
        "less often.",
        "s",
        (("phalanx_scrape_seconds", _WHERE),),
        red_above=5,
    ),
    Panel(
        "Series of a scrape",
        "Series, and those left out by the limit. Some are left out: raise "
        "`PHALANX__METRICS__MAX_SERIES`.",
        "short",
        (
            ("phalanx_scrape_series", f"{_WHERE} exported"),
            ("sum without (level) (phalanx_series_not_shown)", f"{_WHERE} left out"),
        ),
    ),
)

STORAGE = (
    Panel(
        "Checkpoints written",
        "Bytes of committed checkpoints per second. Beyond what the storage takes: save less often, "
        "or compress.",
        "Bps",
        ((f"max({rate('phalanx_checkpoint_bytes_total')})", "written"),),
    ),
    Panel(
        "Time to save",
        "Time to save a checkpoint, over an hour. Above half a minute for 10 GB: the storage is slow"
        " or shared.",
        "s",
        quantiles("phalanx_checkpoint_save_seconds_bucket", "", "1h"),
        red_above=300,
    ),
    Panel(
        "Time to read",
        "Time to read a checkpoint at a resume, over an hour. It is a part of every recovery.",
        "s",
        quantiles("phalanx_resume_seconds_bucket", "", "1h"),
        red_above=120,
    ),
    Panel(
        "Copies in object stores",
        "Copies in an hour by outcome. `failed`: rights, space or network of the store.",
        "short",
        (
            (
                f"sum by (outcome) ({increase('phalanx_checkpoint_copies_total', '1h')})",
                "{{outcome}}",
            ),
        ),
        kind="areas",
    ),
    Panel(
        "Deleted bytes",
        "Bytes that retention and users deleted in a day, by kind. 0 while disks fill: see the "
        "periods of retention.",
        "bytes",
        ((f"sum by (kind) ({increase('phalanx_removed_bytes_total', '1d')})", "{{kind}}"),),
        kind="areas",
    ),
    Panel(
        "Open deletions",
        "Deleted jobs with data that is left. It stays above 0: a node or a store with the data is away.",
        "short",
        ((f"max({one_of('phalanx_deletions_open')})", "jobs"),),
        red_above=100,
    ),
)

OUTPUT = (
    Panel(
        "Stored output",
        "Stored output of all jobs, and its quota. At the quota: output of ended jobs is deleted before "
        "its period is over; raise `retention.log_bytes`, or write less.",
        "bytes",
        (
            (f"max({one_of('phalanx_log_stored_bytes')})", "stored"),
            (f"max({one_of('phalanx_log_quota_bytes')})", "quota"),
        ),
    ),
    Panel(
        "Lag of senders",
        "Age of the oldest line that waits for a sender. It rises: the endpoint does not answer or takes "
        "less than ranks write; `phalanx admin log-senders` has the error.",
        "s",
        ((f"max by (sender) ({one_of('phalanx_log_sender_lag_seconds')})", "{{sender}}"),),
        red_above=900,
    ),
    Panel(
        "Lines of senders",
        "Lines per second that endpoints took, and those that they refuse. Refused ones are lost there: "
        "their size, age or labels are not taken.",
        "short",
        (
            (
                f"sum by (sender) ({rate('phalanx_log_sender_lines_total')})",
                "{{sender}} taken",
            ),
            (
                f"sum by (sender) ({rate('phalanx_log_sender_refused_lines_total')})",
                "{{sender}} refused",
            ),
        ),
    ),
)

POOLS = (
    Panel(
        "Free slots",
        "Free slots of each pool, and those of the node that has the most. The second far below the "
        "first: the pool is fragmented, so that large gangs wait.",
        "short",
        (
            (one_of("phalanx_pool_slots_free"), "{{pool}} free"),
            (one_of("phalanx_pool_largest_free_slots"), "{{pool}} on one node"),
        ),
    ),
    Panel(
        "Waiting jobs by pool",
        "Queued jobs that may run in a pool. One pool with a queue beside an empty one: specs name a"
        " pool too narrowly.",
        "short",
        ((one_of("phalanx_pool_waiting_jobs"), "{{pool}}"),),
        kind="areas",
    ),
    Panel(
        "Quotas",
        "Share of each quota that is used. At 1: jobs of the project wait although slots are free; "
        "`phalanx quotas`.",
        "percentunit",
        (
            (
                f"{one_of('phalanx_quota_used')} / ({one_of('phalanx_quota_limit')} > 0)",
                "{{project}} {{user}} {{slot_type}} {{unit}}",
            ),
        ),
        red_above=0.95,
        most=1,
    ),
    Panel(
        "Nodes of pools that scale",
        "Nodes by state, of pools that their cluster grows. `requested` stays: the cloud has no such"
        " nodes, or the quota there is used up.",
        "short",
        ((f"sum by (pool, state) ({one_of('phalanx_scaling_nodes')})", "{{pool}} {{state}}"),),
    ),
)

BOARD = Board(
    uid="phalanx-control-plane",
    title="Phalanx: control plane",
    text="Replicas, loops, database, storage, pools and quotas of the platform.",
    rows=(
        ("Replicas", REPLICAS),
        ("Work", WORK),
        ("Storage", STORAGE),
        ("Output", OUTPUT),
        ("Pools", POOLS),
    ),
)
