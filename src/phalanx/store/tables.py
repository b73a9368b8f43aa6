"""All tables of the database. A release freezes their names; later changes need a migration.

Times are integer microseconds UTC (`*_at`), durations seconds, sizes bytes. JSON columns hold plain
data written by `core.codec` or pydantic; nothing is ever pickled.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


counters = Table(
    "counters",
    metadata,
    Column("name", String(32), primary_key=True),
    # The last number given out. Taken by UPDATE … RETURNING, which orders writers by their commits.
    Column("value", BigInteger, nullable=False),
)

# Totals of metrics since the database was made: the same for every control plane on it.
metric_totals = Table(
    "metric_totals",
    metadata,
    Column("name", String(64), primary_key=True),  # of the family; `|` before a part of a histogram
    Column("labels", String(512), primary_key=True),  # values of the labels, a list in JSON
    Column("value", Float, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    _key("num"),
    Column("version", BigInteger, nullable=False),  # optimistic: counts commits of this row
    Column("last_seq", BigInteger, nullable=False),  # of its events
    Column("project", String(128), nullable=False),
    Column("name", String(256), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("labels", JSON, nullable=False),
    Column("framework", String(32), nullable=False),
    Column("kind", String(16), nullable=False),  # run: takes the caller's environment; submit
    Column("state", String(16), nullable=False),
    Column("reason_code", String(32), nullable=False),
    Column("reason_message", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("pools", JSON, nullable=False),  # order of preference; empty: any
    Column("cpus_per_node", Integer, nullable=False),
    Column("spec", JSON, nullable=False),  # resolved: every default written out
    # core.contract.job.JobContract; NULL: submitted to a release that had none
    Column("contract", JSON),
    Column("code_digest", String(64)),  # SHA-256 of the archive; NULL: the job brings no code
    Column("caller_cwd", Text),
    Column("caller_env", JSON),  # of `run` jobs, without likely secrets
    Column("snapshot", JSON, nullable=False),  # core.jobs.model.Job; the events can rebuild it
    Column("attempts", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("num_slots", Integer, nullable=False),
    Column("submitted_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("wake_at", BigInteger),  # when the next timer is due; NULL: never
    # Pending reason; overwritten in place, not an event.
    Column("pending_code", String(32)),
    Column("pending_message", Text),
    # Requirements other than the shape (core.gang.placement.Demand); NULL: none.
    Column("demand", JSON),
    Column("attained_slot_s", Float, nullable=False, server_default=text("0")),
    # Of the trial of a study: the numbers of both; NULL: any other job.
    Column("study", BigInteger),
    Column("trial", BigInteger),
    # Of an element of an array: the number of the array's first job, and the index; NULL: any other job.
    Column("array", BigInteger),
    Column("array_index", BigInteger),
    Index(None, "array", "array_index"),
    Column("pool", String(128)),  # of the newest placement; NULL: none so far
    # accelerator that the spec asks for; empty: any
    Column("slot_type", String(128), nullable=False, server_default=text("''")),
    Index(None, "study", "trial"),
    Index(None, "state"),
    Index(None, "project", "submitted_at"),
    Index(None, "wake_at"),
    Index(None, "ended_at"),
)
# The jobs that have not ended, for limits on the jobs that a user submits.
Index(
    "ix_jobs_live_owner",
    jobs.c.owner,
    sqlite_where=jobs.c.ended_at.is_(None),
    postgresql_where=jobs.c.ended_at.is_(None),
)

job_labels = Table(
    "job_labels",
    metadata,
    _key("job"),
    Column("name", String(256), primary_key=True),
    Column("value", Text, nullable=False),
    Index(None, "name", "value", "job"),
)

# Elements of arrays that wait for others of the same array to end; they go in the order of their numbers.
array_turns = Table("array_turns", metadata, _key("array"), _key("job"))

# Open dependencies: `job` waits for `on_job`. Found by the other job; the waiting job has them too.
job_dependencies = Table(
    "job_dependencies",
    metadata,
    _key("job"),
    _key("on_job"),
    Column("kind", String(16), primary_key=True),  # core.jobs.dependencies.DependencyKind
    Index(None, "on_job"),
)

events = Table(
    "events",
    metadata,
    _key("job"),
    _key("seq"),
    Column("feed", BigInteger, nullable=False, unique=True),  # position in the global feed
    Column("v", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("attempt", Integer),
    Column("generation", Integer),
    Column("actor", String(128), nullable=False),
    Column("reason", JSON, nullable=False),  # the job's state and reason after it
    Column("data", JSON, nullable=False),
)

commands = Table(
    "commands",
    metadata,
    _key("id"),
    Column("job", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("done_at", BigInteger),
    Column("lease_owner", String(64)),
    Column("lease_token", String(32)),
    Column("lease_expires_at", BigInteger),
    Column("error", Text),
    Index(None, "done_at", "not_before"),
    Index(None, "job", "attempt"),
)

# Which process runs the loops, on PostgreSQL. Every write of a loop reads its row.
leases = Table(
    "leases",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("token", BigInteger, nullable=False),  # grows with each owner: the fencing token
    Column("owner", String(128), nullable=False),
    Column("expires_at", BigInteger, nullable=False),  # on the clock of the database
)

# The control planes that serve a PostgreSQL database.
replicas = Table(
    "replicas",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("url", Text, nullable=False),
    Column("version", String(64), nullable=False),
    Column("schema", String(32), nullable=False),
    Column("home", String(64), nullable=False),
    Column("machine", String(64), nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),  # on the clock of the database
)


def _applied(table: str, name: Column[str]) -> Table:
    """A table of what files have applied; `body` is the part of the file, whole."""
    return Table(
        table,
        metadata,
        name,
        Column("body", JSON, nullable=False),
        Column("applied_at", BigInteger, nullable=False),
        Column("applied_by", String(128), nullable=False),
    )


pools = _applied("pools", Column("name", String(128), primary_key=True))
projects = _applied("projects", Column("name", String(128), primary_key=True))
# Quotas of users on the whole platform; those inside a project are in its body.
user_quotas = _applied("user_quotas", Column("name", String(128), primary_key=True))
# Stores of data outside the nodes; the name is the URL or the absolute path.
data_stores = _applied("data_stores", Column("name", Text, primary_key=True))

quota_alerts = Table(
    "quota_alerts",
    metadata,
    Column("project", String(128), primary_key=True),  # empty: the whole platform
    Column("user", String(128), primary_key=True),  # empty: all users
    Column("slot_type", String(128), primary_key=True),  # empty: all slot types
    Column("unit", String(16), primary_key=True),  # core.quotas.usage.QuotaUnit
    Column("percent", Integer, primary_key=True, autoincrement=False),  # 0: a job that waits
    Column("job", BigInteger, primary_key=True, autoincrement=False),  # 0: a share of a quota
    Column("reached_at", BigInteger),  # NULL: it is over
    Column("told_at", BigInteger),  # NULL: it has not lasted long enough
    Column("message", Text, nullable=False),
)

node_marks = Table(
    "node_marks",
    metadata,
    Column("node", String(256), primary_key=True),
    Column("state", String(16), nullable=False),  # drained | quarantined
    Column("reason", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(128), nullable=False),
)

reservations = Table(
    "reservations",
    metadata,
    _key("job"),  # the job with the reservation
    Column("kind", String(16), nullable=False),  # preemption | move
    Column("body", JSON, nullable=False),  # core.scheduling.Reservation
    Column("placement", JSON),  # of a move: where the job itself goes
    Column("created_at", BigInteger, nullable=False),
)

project_usage = Table(
    "project_usage",
    metadata,
    Column("project", String(128), primary_key=True),
    Column("average_slots", Float, nullable=False),  # decayed, up to `at`
    Column("held_slots", Integer, nullable=False),  # since `at`
    Column("at", BigInteger, nullable=False),
)

supervisors = Table(
    "supervisors",
    metadata,
    _key("job"),
    _key("attempt"),
    _key("node_rank"),
    Column(
        "token_hash", String(64), nullable=False
    ),  # SHA-256; the token is only in the assignment
    Column("last_seq", BigInteger, nullable=False),  # reports up to here are stored
    Column("first_seen_at", BigInteger),
    Column("last_seen_at", BigInteger),
    Column("clock_offset_us", BigInteger),  # server minus supervisor, by the least delayed sync
    Column("host", String(256)),
    Column("pid", Integer),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger),
    Column("epoch", Integer),
    Column("num_epochs", Integer),
    Column("phase", String(64), nullable=False),
    Column("pids", JSON, nullable=False),  # of the ranks of `generation`, by local rank
    Column("warm", Boolean),
    Column("released_at", BigInteger),  # it reported its exit; only the executor confirms
    # Number of supervisors that the node rank had before in the attempt.
    Column("incarnation", Integer, primary_key=True, autoincrement=False, server_default=text("0")),
    Index(None, "token_hash"),
)

generations = Table(
    "generations",
    metadata,
    _key("job"),
    _key("attempt"),
    _key("generation"),
    Column("up_at", BigInteger),  # all ranks run
    Column("first_step_at", BigInteger),  # the first completed step
    Column("last_step_at", BigInteger),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("failed_at", BigInteger),  # its first failure, on our clock
    Column("ended_at", BigInteger),
)

restores = Table(
    "restores",
    metadata,
    _key("job"),
    _key("attempt"),
    _key("generation"),
    Column("path", Text),  # NULL: from the beginning
    Column("step", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("exact", Boolean, nullable=False),
    Column("took_s", Float),
    Column("at", BigInteger, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _key("id"),
    Column("job", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", Integer),
    Column("path", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("took_s", Float),
    Column("metrics", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),  # valid | quarantined | removed
    Column("copy_state", String(16)),  # uploading | stored | failed
    Column("copy_bytes", BigInteger),
    Column("copied_at", BigInteger),
    Index(None, "job", "path", unique=True),
    Index(None, "job", "step"),
    Index(None, "job", "state", "id"),
)

ledger_rows = Table(
    "ledger_rows",
    metadata,
    _key("job"),
    _key("attempt"),
    _key("generation"),
    _key("node_rank"),
    Column("num_samples", BigInteger),
    Column("rows", JSON, nullable=False),  # [[epoch, lo, hi, times], …]
)

request_keys = Table(
    "request_keys",
    metadata,
    Column("key", String(255), primary_key=True),  # chosen by the client
    Column("request", String(64), nullable=False),  # digest of what it asks for
    Column("answer", JSON),
    Column("created_at", BigInteger, nullable=False, index=True),
)

log_segments = Table(
    "log_segments",
    metadata,
    _key("id"),  # order of arrival: the cursor of readers
    Column("job", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("stream", String(3), nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),  # bytes lost before this segment
    Column("at", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index(None, "job", "id"),
    Index(None, "job", "attempt", "generation", "rank", "stream", "offset", unique=True),
)

log_streams = Table(
    "log_streams",
    metadata,
    _key("job"),
    _key("attempt"),
    _key("generation"),
    _key("rank"),
    Column("stream", String(3), primary_key=True),
    # Bytes up to here were received once, whether or not they are still stored.
    Column("received", BigInteger, nullable=False),
    Column("size", BigInteger),  # all that the rank wrote; NULL: not known, or all was received
    # Of what was said with the size: its place in the order of arrival (0: nothing was), its time, and
    # bytes that were lost before it.
    Column("end_id", BigInteger, nullable=False, server_default=text("0")),
    Column("end_at", BigInteger, nullable=False, server_default=text("0")),
    Column("end_lost", BigInteger, nullable=False, server_default=text("0")),
    # Bytes before this offset were deleted because of their age.
    Column("expired", BigInteger, nullable=False, server_default=text("0")),
    # So many of them, the last ones, were deleted by the quota of all jobs.
    Column("by_quota", BigInteger, nullable=False, server_default=text("0")),
    # Bytes before this offset are in packs, as far as they are stored.
    Column("packed", BigInteger, nullable=False, server_default=text("0")),
    # Bytes between these offsets were deleted because of the job's limit, and with them the mention of
    # bytes that were lost before.
    Column("cut_begin", BigInteger, nullable=False, server_default=text("0")),
    Column("cut_end", BigInteger, nullable=False, server_default=text("0")),
    Column("cut_lost", BigInteger, nullable=False, server_default=text("0")),
    Index(None, "job", "end_id"),
)

log_volumes = Table(
    "log_volumes",
    metadata,
    _key("job"),
    Column("stored_bytes", BigInteger, nullable=False),
    # Segments up to `head_id` are the protected beginning. Those behind it up to `cut_id` were deleted
    # because of the job's limit: one range, for the beginning does not grow any more then.
    Column("head_id", BigInteger, nullable=False),
    Column("cut_id", BigInteger, nullable=False, server_default=text("0")),
    Column("cut_at", BigInteger, nullable=False, server_default=text("0")),
    Column("loose_bytes", BigInteger, nullable=False, server_default=text("0")),  # in no pack
    Column("newest_at", BigInteger, nullable=False, server_default=text("0")),  # of its segments
    # The newest place in its output: of a segment, or of an end without all bytes.
    Column("newest_id", BigInteger, nullable=False, server_default=text("0")),
    Index(None, "newest_id"),
)

# Tokens with scopes, and sessions of browsers. The token of the home is in none.
credentials = Table(
    "credentials",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),  # store.credentials: token or session
    Column("name", String(128), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),  # NULL: never
    Column("parent", String(32)),  # of a session: the token that opened it
    Column("principal", String(140)),  # id of the account; NULL: the user of the home
    Index(None, "hash", unique=True),
    Index(None, "parent"),
    Index(None, "principal"),
)

# What did what, from where: triggers refuse to change or remove a row.
audit_log = Table(
    "audit_log",
    metadata,
    _key("id"),  # in the order of the commits
    Column("at", BigInteger, nullable=False),
    Column("actor", String(140), nullable=False),
    Column("credential", String(64), nullable=False),
    Column("address", String(64), nullable=False),
    Column("action", String(160), nullable=False),
    Column("target", String(300), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("changes", JSON, nullable=False),
    Index(None, "actor", "id"),
    Index(None, "target", "id"),
)

# Users and service accounts.
accounts = Table(
    "accounts",
    metadata,
    Column("id", String(140), primary_key=True),  # such as user:ada
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(140), nullable=False),
    Column("identity", String(512)),  # core.tenancy.identities: issuer and subject that log in
    Column("disabled_at", BigInteger),  # µs UTC; NULL: it may log in
    Index(None, "identity", unique=True),
)

# A group is there as long as it has a member or a role.
group_members = Table(
    "group_members",
    metadata,
    Column("group_id", String(140), primary_key=True),  # such as group:ml
    Column("member", String(140), primary_key=True),  # id of an account
    Column("from_login", Boolean, nullable=False, server_default=false()),  # by its provider
    Index(None, "member"),
)

# One role of a user, service account or group in each place.
role_grants = Table(
    "role_grants",
    metadata,
    Column("subject", String(140), primary_key=True),
    Column("project", String(128), primary_key=True),  # empty: the whole platform
    Column("role", String(16), nullable=False),
    Column("granted_at", BigInteger, nullable=False),
    Column("granted_by", String(140), nullable=False),
)

# What trials have reported: the first report of each unit stands.
trial_reports = Table(
    "trial_reports",
    metadata,
    _key("id"),  # in the order of arrival
    Column("job", BigInteger, nullable=False),
    Column("unit", BigInteger, nullable=False),  # units completed
    Column("attempt", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    # Of the objective: a number, a text where it is not finite, null where the report did not have it.
    Column("value", JSON, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("checkpoint", Text),  # path or URL of the one committed at this unit; NULL: none
    Column("final", Boolean, nullable=False),  # the target of the trial
    Column("at", BigInteger, nullable=False),
    Index(None, "job", "unit", unique=True),
)

# Checkpoints that retention must not delete.
checkpoint_pins = Table(
    "checkpoint_pins",
    metadata,
    _key("job"),
    Column("path", Text, primary_key=True),
    Column("by", String(128), primary_key=True),  # what needs it, such as `s-3`
    Column("at", BigInteger, nullable=False),
)

# What is true of the whole database, such as its id.
facts = Table(
    "facts",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)

studies = Table(
    "studies",
    metadata,
    _key("num"),
    Column("version", BigInteger, nullable=False),  # optimistic: counts commits of this row
    Column("last_seq", BigInteger, nullable=False),  # of its events, which alone are its state
    Column("project", String(128), nullable=False),
    Column("name", String(256), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("labels", JSON, nullable=False),
    Column("spec", JSON, nullable=False),  # resolved; values of secret variables withheld
    Column("submission", JSON, nullable=False),  # what the jobs of its trials are submitted with
    Column("code_digest", String(64)),  # of the trials' code; NULL: they bring none
    Column("state", String(16), nullable=False),
    Column("reason_code", String(32), nullable=False),
    Column("reason_message", Text, nullable=False),
    Column("counts", JSON, nullable=False),  # trials by status
    Column("best_trial", BigInteger),  # NULL: no finite value yet
    Column("slot_s", Float, nullable=False),
    Column("usd", Float, nullable=False),
    Column("submitted_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),  # when the first trial started
    Column("ended_at", BigInteger),
    Column("wake_at", BigInteger),  # when the next timer is due; NULL: never
    Column("max_trials", BigInteger, nullable=False),  # the limits as they are now
    Column("parallel", BigInteger, nullable=False),
    Index(None, "state"),
    Index(None, "project", "submitted_at"),
    Index(None, "wake_at"),
)

study_events = Table(
    "study_events",
    metadata,
    _key("study"),
    _key("seq"),
    Column("v", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("trial", BigInteger),
    Column("actor", String(128), nullable=False),
    Column("reason", JSON, nullable=False),  # the study's state and reason after it
    Column("data", JSON, nullable=False),
)

trials = Table(
    "trials",
    metadata,
    _key("study"),
    _key("trial"),
    Column("job", BigInteger),  # the newest one; NULL: none yet, or an outside evaluator
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("params", JSON, nullable=False),
    Column("origin", JSON, nullable=False),  # core.search.model.Origin
    Column("rung", Integer),
    Column("until", BigInteger),  # the unit where it pauses; NULL: it runs to its end
    Column("unit", BigInteger),  # the last one reported
    Column("value", Float),  # of the objective, at its `at`; NULL: no finite one
    Column("checkpoint", Text),  # of `value`, or the last one
    Column("slot_s", Float, nullable=False),
    Column("usd", Float, nullable=False),
    Column("submitted_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Index(None, "job"),
    Index(None, "study", "status"),
)

# What a study's decisions ask for, until it is done; deleted then.
study_commands = Table(
    "study_commands",
    metadata,
    _key("id"),
    Column("study", BigInteger, nullable=False),
    Column("trial", BigInteger),
    Column("kind", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("seq", BigInteger, nullable=False),  # of the study's last event when it was decided
    Column("created_at", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("error", Text),
    Index(None, "not_before"),
    Index(None, "study"),
)

# The cost ledger: slot time of each generation on each day, and of each wait in the queue.
cost_rows = Table(
    "cost_rows",
    metadata,
    _key("id"),  # in the order of commits
    Column("job", BigInteger, nullable=False),
    Column("from_at", BigInteger, nullable=False),
    Column("to_at", BigInteger, nullable=False),
    Column("project", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("study", BigInteger),
    Column("trial", BigInteger),
    Column("attempt", Integer, nullable=False),  # of a wait: the one that it was for
    Column("generation", Integer),  # NULL: a wait in the queue
    Column("pool", String(128), nullable=False),  # empty: a wait
    Column("ended_by", String(16)),  # core.cost.ledger.Interruption of the attempt
    Column("slots", Integer, nullable=False),
    # Microseconds times slots by core.cost.ledger.Account; together (to_at - from_at) × slots.
    Column("queued", BigInteger, nullable=False),
    Column("starting", BigInteger, nullable=False),
    Column("productive", BigInteger, nullable=False),
    Column("saving", BigInteger, nullable=False),
    Column("redone", BigInteger, nullable=False),
    Column("lost_to_failure", BigInteger, nullable=False),
    Column("lost_to_preemption", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),  # 1e-9 US dollars
    Column("slot_type", String(128), nullable=False, server_default=""),  # empty: several, unknown
    Index(None, "job"),
    Index(None, "study", "trial"),
    Index(None, "from_at"),
)

# Prices with their history.
cost_prices = Table(
    "cost_prices",
    metadata,
    Column("kind", String(16), primary_key=True),  # core.cost.price_table.PriceKind
    Column("pool", String(128), primary_key=True),  # empty: all
    Column("slot_type", String(128), primary_key=True),  # empty: all
    Column("spot", String(3), primary_key=True),  # yes or no; empty: both
    _key("valid_from"),
    Column("nano_usd", BigInteger, nullable=False),  # 1e-9 US dollars a unit of the kind
    Column("set_at", BigInteger, nullable=False),
    Column("set_by", String(128), nullable=False),
)

cost_budgets = Table(
    "cost_budgets",
    metadata,
    Column("scope", String(16), primary_key=True),  # core.cost.budgets.BudgetScope
    Column("name", String(128), primary_key=True),  # of the project or user; number of the job
    Column("nano_usd", BigInteger),  # 1e-9 US dollars; NULL: no limit of money
    Column("slot_us", BigInteger),  # microseconds times slots; NULL: no limit of slot time
    Column("period", String(8), nullable=False),
    Column("warn", JSON, nullable=False),  # percent, a list
    Column("pause_percent", Integer, nullable=False),
    Column("state", String(8), nullable=False),
    Column("since", BigInteger),  # begin of the period of `alerts`; NULL: of all time
    Column("alerts", JSON, nullable=False),  # core.cost.budgets.BudgetAlert, a list
)

# Secrets of projects; the values are encrypted (store/secrets/envelope.py).
secrets = Table(
    "secrets",
    metadata,
    Column("project", String(128), primary_key=True),  # empty: the whole platform
    Column("name", String(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("key_id", String(200), nullable=False),  # of the master key
    Column("wrapped_key", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("set_at", BigInteger, nullable=False),
    Column("set_by", String(128), nullable=False),
    Column("source", Text, nullable=False, server_default=""),  # in a manager; empty: sealed
)

# Jobs that are submitted at the times of a cron expression.
schedules = Table(
    "schedules",
    metadata,
    Column("project", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("version", BigInteger, nullable=False),  # counts changes, due times among them
    Column("principal", String(128), nullable=False),  # with the rights that its jobs need
    Column("owner", String(256), nullable=False),
    Column("cron", String(128), nullable=False),
    Column("timezone", String(128), nullable=False),
    Column("catch_up", String(8), nullable=False),  # core.schedules.policy.CatchUp
    Column("catch_up_limit", Integer, nullable=False),
    Column("overlap", String(8), nullable=False),  # core.schedules.policy.Overlap
    Column("paused", Boolean, nullable=False),
    Column("request", JSON, nullable=False),  # the submission, secret values withheld
    Column("code_digest", String(64)),  # NULL: its jobs bring no code
    Column("next_at", BigInteger),  # NULL: paused, or never again
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("changed_by", String(128), nullable=False),
    Index(None, "next_at"),
)

# Job templates: a row for each version, which never changes.
job_templates = Table(
    "job_templates",
    metadata,
    Column("project", String(128), primary_key=True),  # empty: the whole platform
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("body", JSON, nullable=False),  # schemas.spec.template.JobTemplate
    Column("code_digest", String(64)),  # NULL: its jobs bring no code
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(128), nullable=False),
)

# What became of due times. The key admits one run of each due time.
schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("project", String(128), primary_key=True),
    Column("schedule", String(128), primary_key=True),
    _key("due_at"),
    Column("handled_at", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),  # core.schedules.policy.DueOutcome
    Column("job", BigInteger),  # the first one; NULL: none was submitted
    Column("num_jobs", Integer, nullable=False),
    Column("by", String(128), nullable=False),  # of a run on request; empty: the schedule
    Column("message", Text, nullable=False),
)

# Sums of `cost_rows` up to the id in the counter `cost_folded`.
cost_days = Table(
    "cost_days",
    metadata,
    _key("day"),  # from 1970, UTC
    Column("project", String(128), primary_key=True),
    Column("owner", String(128), primary_key=True),
    Column("pool", String(128), primary_key=True),
    Column("queued", BigInteger, nullable=False),
    Column("starting", BigInteger, nullable=False),
    Column("productive", BigInteger, nullable=False),
    Column("saving", BigInteger, nullable=False),
    Column("redone", BigInteger, nullable=False),
    Column("lost_to_failure", BigInteger, nullable=False),
    Column("lost_to_preemption", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
)

# The same sums by job, up to the same id.
cost_job_sums = Table(
    "cost_job_sums",
    metadata,
    _key("job"),
    Column("project", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("study", BigInteger),
    Column("queued", BigInteger, nullable=False),
    Column("starting", BigInteger, nullable=False),
    Column("productive", BigInteger, nullable=False),
    Column("saving", BigInteger, nullable=False),
    Column("redone", BigInteger, nullable=False),
    Column("lost_to_failure", BigInteger, nullable=False),
    Column("lost_to_preemption", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),  # all accounts but queued
    Index(None, "nano_usd", "held", "job"),
    Index(None, "project", "nano_usd", "held", "job"),
    Index(None, "owner", "nano_usd", "held", "job"),
    Index(None, "study", "nano_usd", "held", "job"),
)
