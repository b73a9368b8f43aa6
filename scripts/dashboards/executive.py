"""The executive dashboard: success, money, time to complete, convergence."""

from __future__ import annotations

from dashboards.panels import Board, Panel, increase, one_of, quantiles, ratio

_ENDED = 'phalanx_jobs_finished_total{state=~"succeeded|failed"}'
_GOOD = 'phalanx_jobs_finished_total{state="succeeded"}'
_HELD = 'phalanx_slot_seconds_total{project=~"$project", account!="queued"}'
_USEFUL = 'phalanx_slot_seconds_total{project=~"$project", account="productive"}'
_SLOTS = 'phalanx_slot_seconds_total{project=~"$project"}'
_LIVE = 'phalanx_jobs{state!~"succeeded|failed|cancelled"}'
_SPENT = 'phalanx_cost_usd_total{project=~"$project"}'
_CLASS_ENDED = 'phalanx_class_jobs_ended_total{class=~"$class", fault=~"none|platform|user"}'
_CLASS_FAILED = 'phalanx_class_jobs_ended_total{class=~"$class", fault="platform"}'
_CLASS_SLOTS = 'phalanx_class_slot_seconds_total{class=~"$class"}'
_CLASS_USEFUL = 'phalanx_class_slot_seconds_total{class=~"$class", use="productive"}'
_SLOPE = one_of('deriv(training_loss{project=~"$project"}[30m])')

RESULTS = (
    Panel(
        "Jobs that succeeded",
        "Share of the ended jobs that succeeded, cancelled ones left out. Red: open the dashboard "
        "for on-call and look at failures by cause; `phalanx ps --state failed` lists the jobs.",
        "percentunit",
        (
            (
                ratio(
                    f"sum({increase(_GOOD, '$__range')})",
                    f"sum({increase(_ENDED, '$__range')})",
                ),
                "succeeded",
            ),
        ),
        kind="number",
        red_below=0.95,
        most=1,
    ),
    Panel(
        "Success over a day",
        "The same share for each day before a point. A step down that stays is a change of code, of "
        "an image or of nodes: compare its time with releases and with the failures by cause.",
        "percentunit",
        ((ratio(f"sum({increase(_GOOD, '1d')})", f"sum({increase(_ENDED, '1d')})"), "succeeded"),),
        red_below=0.95,
        most=1,
    ),
    Panel(
        "Ended jobs",
        "Jobs that ended in an hour, by state. Many failed ones at once: one cause for all of them, "
        "mostly; see failures by cause.",
        "short",
        ((f"sum by (state) ({increase('phalanx_jobs_finished_total', '1h')})", "{{state}}"),),
        kind="areas",
    ),
    Panel(
        "Jobs by state",
        "Jobs that are not ended. Queued ones that only grow: more is submitted than the pools can "
        "run; see the wait for slots, and `phalanx why JOB` for one of them.",
        "short",
        (
            (
                f"sum by (state) ({one_of(_LIVE)})",
                "{{state}}",
            ),
        ),
        kind="areas",
    ),
    Panel(
        "Time to complete",
        "Time from submission to the end of a job, by state, over a day. Longer at equal jobs: look "
        "whether the wait for slots grew, or the time in the account `lost to failures`.",
        "s",
        quantiles("phalanx_job_seconds_bucket", "state", "1d", "{{state}}"),
    ),
    Panel(
        "Jobs that the platform did not fail, by class",
        "Share of the ended jobs of each class that did not fail because of the platform, over a day. "
        "Below the objective of the class: its error budget burns; `phalanx slo` has what is left.",
        "percentunit",
        (
            (
                "1 - "
                + ratio(
                    f"sum by (class) ({increase(_CLASS_FAILED, '1d')})",
                    f"sum by (class) ({increase(_CLASS_ENDED, '1d')})",
                ),
                "{{class}}",
            ),
        ),
        red_below=0.95,
        most=1,
    ),
    Panel(
        "Jobs whose loss falls",
        "Share of the live jobs with a loss that fell over half an hour. Low: look at the losses on "
        "the training dashboard, and stop what does not learn.",
        "percentunit",
        ((f"avg({_SLOPE} < bool 0)", "falls"),),
        red_below=0.5,
        most=1,
    ),
)

MONEY = (
    Panel(
        "Spent",
        "Cost of each project in the time shown, of waits and attempts that have ended. Higher than "
        "the budget allows: `phalanx budgets` shows limits, `phalanx cost` the jobs behind it.",
        "currencyUSD",
        ((f"sum by (project) ({increase(_SPENT, '$__range')})", "{{project}}"),),
        kind="bars",
    ),
    Panel(
        "Spent in a day",
        "Cost of each project over the day before a point. A jump: `phalanx cost` by job, and the "
        "anomalies beside this.",
        "currencyUSD",
        ((f"sum by (project) ({increase(_SPENT, '1d')})", "{{project}}"),),
        kind="areas",
    ),
    Panel(
        "Projected for 30 days",
        "Thirty times the cost of the last day. Above what is planned: lower the budget of the "
        "project, or stop its largest job.",
        "currencyUSD",
        ((f"30 * sum by (project) ({increase(_SPENT, '1d')})", "{{project}}"),),
        kind="bars",
    ),
    Panel(
        "Anomalies of cost",
        "Anomalies that are open or acknowledged. Not 0: `phalanx cost anomalies` names the job or "
        "project, the expectation and what was spent.",
        "short",
        ((one_of("phalanx_cost_anomalies"), "{{state}}"),),
        kind="number",
        red_above=1,
    ),
    Panel(
        "Budgets",
        "Share of each budget that was used in its period. At 1: none of its jobs starts; see "
        "`phalanx budgets`.",
        "percentunit",
        ((one_of("phalanx_budget_used_ratio"), "{{scope}} {{name}}"),),
        red_above=0.9,
    ),
)

USE = (
    Panel(
        "Productive time",
        "Share of the held slot time that made steps for the first time, over a day. Red: the panel "
        "beside it says what the rest was used for.",
        "percentunit",
        (
            (
                ratio(f"sum({increase(_USEFUL, '1d')})", f"sum({increase(_HELD, '1d')})"),
                "productive",
            ),
        ),
        red_below=0.8,
        most=1,
    ),
    Panel(
        "Productive time, by class",
        "Share of the held slot time of each class that made steps for the first time, as attempts end, "
        "over a day. Below the objective of the class: `phalanx slo`, then the panel beside it.",
        "percentunit",
        (
            (
                ratio(
                    f"sum by (class) ({increase(_CLASS_USEFUL, '1d')})",
                    f"sum by (class) ({increase(_CLASS_SLOTS, '1d')})",
                ),
                "{{class}}",
            ),
        ),
        red_below=0.8,
        most=1,
    ),
    Panel(
        "Where slot time went",
        "Slot time by account, per day. Much in `starting`: images and packages; in `saving`: "
        "checkpoints too often or too slow; in `redone` and `lost`: failures; in `idle`: jobs that "
        "hold slots without steps.",
        "s",
        (
            (
                f"sum by (account) ({increase(_SLOTS, '1d')})",
                "{{account}}",
            ),
        ),
        kind="areas",
    ),
    Panel(
        "Slots in use",
        "Share of the slots of all pools that jobs hold. Low while jobs wait: slots are fragmented "
        "or reserved; `phalanx why JOB` says which.",
        "percentunit",
        (
            (
                ratio(
                    f"max({one_of('phalanx_held_slots')})", f"sum({one_of('phalanx_pool_slots')})"
                ),
                "held",
            ),
        ),
        red_below=0.5,
        most=1,
    ),
    Panel(
        "Wait for slots",
        "Time from queue to placement over a day. Beyond what users were promised: add nodes, or "
        "look at quotas with `phalanx quotas`.",
        "s",
        quantiles("phalanx_queue_wait_seconds_bucket", "", "1d"),
        red_above=3600,
    ),
)

BOARD = Board(
    uid="phalanx-executive",
    title="Phalanx: executive",
    text="Success, cost, time to complete and use of the platform. For a review, not for an alarm.",
    rows=(("Results", RESULTS), ("Cost", MONEY), ("Use", USE)),
    window="now-7d",
)
