/** Jobs that wait, in the order of the planner, and why the chosen one does. */

import type { JSX } from "preact";
import { get, type Job } from "../api/client";
import { count, duration, plural } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { now, route, setQuery, useLive, useLoad } from "../ui/hooks";
import { Empty, Show, State, why } from "../ui/parts";
import { Why } from "./why";

export function Queue(): JSX.Element {
  const { cursor = "" } = route.value.query;
  const page = useLoad((abort) => get("/api/v1/jobs", {}, { state: ["waiting", "queued", "recovering"], sort: "-priority", limit: 50, cursor: cursor || null }, abort), [cursor], 5000);
  useLive(page.reload, null);
  return (
    <>
      <div class="title"><h1>Queue</h1></div>
      <Show of={page}>
        {(found) => (found.jobs.length ? <Waiting jobs={found.jobs} next={found.cursor} /> : <Empty title="No job waits">Every job that may run holds its slots.</Empty>)}
      </Show>
    </>
  );
}

function Waiting({ jobs, next }: { jobs: Job[]; next: string | null }): JSX.Element {
  const num = Number(route.value.query.job) || jobs[0]?.num;
  const chosen = jobs.find((one) => one.num === num) ?? jobs[0];
  const slots = jobs.reduce((sum, one) => sum + one.num_slots, 0);
  return (
    <>
      <p class="summary" role="status">{plural(jobs.length, "job")} on this page {jobs.length === 1 ? "waits" : "wait"} for {plural(slots, "slot")}</p>
      <div class="split">
        <div class="scroll" tabIndex={0} role="region" aria-label="Jobs that wait">
          <table>
            <caption class="hidden">Jobs that wait, highest priority first</caption>
            <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col" class="n">Priority</th><th scope="col" class="n">Slots</th><th scope="col" class="n">Waits for</th></tr></thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.num} class={job.num === chosen?.num ? "chosen" : undefined}>
                  <td><button type="button" class="link" aria-pressed={job.num === chosen?.num} onClick={() => setQuery({ job: job.num })}>{job.label} {job.name}</button></td>
                  <td><State of={job.state} /></td>
                  <td class="n">{job.priority}</td>
                  <td class="n">{count(job.num_slots)}</td>
                  <td class="n">{duration((now.value - Date.parse(job.submitted_at)) / 1000)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {next && <nav class="pages"><a class="button" href={href(["queue"], { cursor: next })}>Next page</a></nav>}
        </div>
        {chosen && (
          <section aria-label={`Why ${chosen.label} waits`} aria-live="polite">
            <h2 class="lead"><a href={href(["jobs", chosen.num])}>{chosen.label} {chosen.name}</a></h2>
            <Why key={chosen.num} job={chosen} />
            {!why(chosen) && <p class="quiet">The planner has not looked at it yet.</p>}
          </section>
        )}
      </div>
    </>
  );
}
