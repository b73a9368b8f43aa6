/** Why a job waits, runs or has stopped: what binds, when it starts, and what would start it now. */

import type { JSX } from "preact";
import { get, type Job, type Schemas } from "../api/client";
import { count, duration, time, words } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { now, useLive, useLoad } from "../ui/hooks";
import { Bar, Empty, Fact, Show, Table } from "../ui/parts";

export function Why({ job }: { job: Job }): JSX.Element {
  const found = useLoad((abort) => get("/api/v1/jobs/{num}/why", { num: job.num }, undefined, abort), [job.num, job.state], job.ended_at ? 0 : 5000);
  useLive(found.reload, job.num);
  return <Show of={found}>{(one) => <Answer of={one} />}</Show>;
}

export function Answer({ of: one }: { of: Schemas["WhyView"] }): JSX.Element {
  return (
    <div class="answer">
      <p class="lead">{one.reason.message || words(one.reason.code)}</p>
      <dl class="facts">
        {one.position !== null && <Fact name="Place in the queue">{count(one.position)} of {count(one.num_waiting)}</Fact>}
        {one.eta_p50_at && <Fact name="Starts about" hint="Half of such predictions come earlier">{time(one.eta_p50_at, now.value)}</Fact>}
        {one.eta_p90_at && <Fact name="At the latest" hint="Nine of ten such predictions come earlier">{time(one.eta_p90_at, now.value)}</Fact>}
      </dl>
      {one.constraints.length > 0 && (
        <>
          <h2 class="small">What binds</h2>
          <ul class="constraints">
            {one.constraints.map((at) => (
              <li key={at.text}>
                {at.text}
                {at.need > 0 && <Bar share={at.have / at.need} label={`${at.have} of ${at.need} ${at.unit}`} />}
              </li>
            ))}
          </ul>
        </>
      )}
      {one.changes.length > 0 && (
        <>
          <h2 class="small">What would start it now</h2>
          <ul class="changes">
            {one.changes.map((at) => (
              <li key={at.text}>
                <span class="tag">{words(at.kind)}</span> {at.text}{at.victims.length > 0 && <>: would preempt {at.victims.map((num) => <a key={num} href={href(["jobs", num])}>j-{num} </a>)}</>}
              </li>
            ))}
          </ul>
        </>
      )}
      <More of={one} />
    </div>
  );
}

function More({ of: one }: { of: Schemas["WhyView"] }): JSX.Element {
  const past = one.waits.length > 0 || one.evictions.length > 0 || one.victims.length > 0;
  if (!past && !one.constraints.length && !one.changes.length) return <Empty title="Nothing holds this job back" />;
  return (
    <>
      {one.victims.length > 0 && (
        <>
          <h2 class="small">Preempted for it</h2>
          <ul>{one.victims.map((at) => <li key={at.job}><a href={href(["jobs", at.job])}>j-{at.job}</a> {at.text}</li>)}</ul>
        </>
      )}
      {one.evictions.length > 0 && (
        <>
          <h2 class="small">Evictions</h2>
          <Table
            caption="Evictions of the job"
            rows={one.evictions}
            rowKey={(at) => at.at}
            columns={[
              { name: "When", cell: (at) => time(at.at, now.value) },
              { name: "Why", wide: true, cell: (at) => at.text },
              { name: "Lost", number: true, cell: (at) => duration(at.lost_s) },
            ]}
          />
        </>
      )}
      {one.waits.length > 0 && (
        <>
          <h2 class="small">Waits so far</h2>
          <ul>{one.waits.map((at) => <li key={at.placed_at}>{duration(at.waited_s)}: {at.text}</li>)}</ul>
        </>
      )}
    </>
  );
}
