/** A run at one look: what people logged, the last failure, where the seconds went, what happened. */

import type { JSX } from "preact";
import { get, type Job, type Schemas } from "../api/client";
import { duration, time, words } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { pinned } from "../lib/series.ts";
import { now, useLive, useLoad } from "../ui/hooks";
import { Empty, Fact, Shares, Show, State, Table } from "../ui/parts";
import { MetricPanel } from "../ui/chart";

const PINNED = 6;

export function Overview({ job }: { job: Job }): JSX.Element {
  return (
    <div class="overview">
      {job.failure && <Failure job={job} failure={job.failure} />}
      <Pinned job={job} />
      <div class="columns">
        <Seconds job={job} />
        <About job={job} />
      </div>
      <Faults job={job} />
      <Events job={job} />
    </div>
  );
}

function Failure({ job, failure }: { job: Job; failure: Schemas["FailureView"] }): JSX.Element {
  const place = failure.rank === null ? `node ${failure.node_rank}` : `rank ${failure.rank}`;
  const end = failure.signal ? `signal ${failure.signal}` : failure.exit_code === null ? "" : `exit code ${failure.exit_code}`;
  return (
    <section class="failure" aria-label="Last failure">
      <h2>Last failure: {words(failure.cause)}</h2>
      <p><strong>{failure.message}</strong></p>
      <p class="quiet">First at {place}{end && `, ${end}`}, {time(failure.at, now.value)}. <a href={href(["jobs", job.num, "logs"], failure.rank === null ? {} : { rank: failure.rank, level: "error" })}>Its errors in the logs</a></p>
      {failure.traceback && <details open><summary>Traceback</summary><pre tabIndex={0}>{failure.traceback}</pre></details>}
    </section>
  );
}

function Pinned({ job }: { job: Job }): JSX.Element {
  const names = useLoad((abort) => get("/api/v1/jobs/{num}/metrics", { num: job.num }, { max_points: 4, rank: [0] }, abort), [job.num, job.progress.step === null], 0);
  return (
    <section aria-label="Metrics">
      <h2>Metrics <a class="more" href={href(["jobs", job.num, "curves"])}>All curves</a></h2>
      <Show of={names}>
        {(found) => {
          const ordered = pinned(found.names, PINNED, 4);
          if (!ordered.length) return <Empty title="No metric yet">A script logs them with <code>run.log(loss=loss)</code>.</Empty>;
          return <div class="panels">{ordered.map((name) => <MetricPanel key={name} job={job} name={name} height={150} compact />)}</div>;
        }}
      </Show>
    </section>
  );
}

const ACCOUNTS = ["productive", "saving", "starting", "redone", "lost_to_failure", "lost_to_preemption", "idle"] as const;

function Seconds({ job }: { job: Job }): JSX.Element {
  const accounts = job.cost?.accounts;
  const parts = accounts ? ACCOUNTS.map((one): [string, number] => [words(one), accounts[one]]).filter(([, one]) => one > 0) : [];
  return (
    <section aria-label="Where the slot time went">
      <h2>Where the slot time went</h2>
      {parts.length ? <Shares parts={parts} unit={duration} /> : <p class="quiet">The job has held no slot yet.</p>}
    </section>
  );
}

function About({ job }: { job: Job }): JSX.Element {
  return (
    <section aria-label="About">
      <h2>About</h2>
      <dl class="list">
        <Fact name="Project">{job.project}</Fact>
        <Fact name="Pool">{job.pool ?? "any"}{job.slot_type && `, ${job.slot_type}`}</Fact>
        <Fact name="Priority">{job.priority}</Fact>
        <Fact name="Framework">{job.framework}</Fact>
        {job.entry_point && <Fact name="Runs">{job.entry_point}</Fact>}
        {job.image && <Fact name="Image">{job.image}</Fact>}
        {job.algorithm && <Fact name="Algorithm">{job.algorithm}</Fact>}
        {Object.entries(job.labels).map(([name, one]) => <Fact key={name} name={name}>{one}</Fact>)}
        {job.description && <Fact name="Description">{job.description}</Fact>}
      </dl>
    </section>
  );
}

function Faults({ job }: { job: Job }): JSX.Element | null {
  const restarts = job.lineage?.restarts ?? [];
  if (!restarts.length) return null;
  return (
    <section aria-label="Faults">
      <h2>Faults</h2>
      <Table
        caption="Faults and how the job went on"
        rows={[...restarts].reverse()}
        rowKey={(one) => `${one.attempt}.${one.generation}`}
        columns={[
          { name: "When", cell: (one) => time(one.failed_at, now.value) },
          { name: "Cause", cell: (one) => words(one.cause) },
          { name: "Where", cell: (one) => (one.rank === null ? "–" : `rank ${one.rank}`) },
          { name: "What", wide: true, cell: (one) => one.message },
          { name: "Then", wide: true, cell: (one) => one.action || "–" },
          { name: "Lost", number: true, cell: (one) => duration(one.lost_s) },
        ]}
      />
    </section>
  );
}

function Events({ job }: { job: Job }): JSX.Element {
  const events = useLoad((abort) => get("/api/v1/jobs/{num}/events", { num: job.num }, {}, abort), [job.num], 0);
  useLive(events.reload, job.num);
  return (
    <section aria-label="Events">
      <h2>Events</h2>
      <Show of={events}>
        {(found) => (
          <Table
            caption="Events, newest first"
            rows={[...found.events].reverse().slice(0, 30)}
            rowKey={(one) => one.seq}
            columns={[
              { name: "When", cell: (one) => time(one.at, now.value) },
              { name: "What", cell: (one) => words(one.kind) },
              { name: "State", cell: (one) => <State of={one.state} /> },
              { name: "Why", wide: true, cell: (one) => one.reason.message || words(one.reason.code) },
              { name: "By", cell: (one) => <span class="quiet">{one.actor}</span> },
            ]}
          />
        )}
      </Show>
    </section>
  );
}
