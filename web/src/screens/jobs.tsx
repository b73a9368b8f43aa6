/** All jobs: filter bar, pages by cursor, live. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JSX } from "preact";
import { canWrite, get, send, type Job } from "../api/client";
import { parseFilter } from "../lib/filter.ts";
import { count, duration, plural, slotTime, usd, value } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { ENDED, HOLDING } from "../lib/states.ts";
import { now, route, setQuery, useKey, useLive, useLoad } from "../ui/hooks";
import { Ask, Bar, type Column, Empty, progressText, runSeconds, Show, State, When, why } from "../ui/parts";

const PAGE = 50;
const CHIPS: [string, string][] = [["All", ""], ["Active", "state:active"], ["Pending", "state:pending"], ["Failed", "state:failed"], ["Ended", "state:ended"]];

export function Jobs(): JSX.Element {
  const { q = "", cursor = "" } = route.value.query;
  const { query, problems } = parseFilter(q);
  const page = useLoad((abort) => get("/api/v1/jobs", {}, { ...query, limit: PAGE, cursor: cursor || null }, abort), [q, cursor], 5000);
  useLive(page.reload, null);
  return (
    <>
      <div class="title">
        <h1>Jobs</h1>
        <FilterBar text={q} problems={problems} />
      </div>
      <Show of={page}>{(found) => <List jobs={found.jobs} next={found.cursor} filtered={q !== "" || cursor !== ""} reload={page.reload} />}</Show>
    </>
  );
}

function FilterBar({ text, problems }: { text: string; problems: string[] }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    const timer = setTimeout(() => typed === text || setQuery({ q: typed, cursor: null }), 300);
    return () => clearTimeout(timer);
  }, [typed]);
  useKey("/", (event) => {
    event.preventDefault();
    field.current?.focus();
  });
  return (
    <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
      <input
        ref={field}
        type="search"
        aria-label="Filter, such as state:running project:vision metric:val_acc>0.9"
        placeholder="state:running project:vision metric:val_acc>0.9  ( / )"
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      <div class="chips" role="group" aria-label="Frequent filters">
        {CHIPS.map(([name, one]) => (
          <button key={name} type="button" aria-pressed={text === one} onClick={() => setQuery({ q: one, cursor: null })}>{name}</button>
        ))}
      </div>
      {problems.length > 0 && <p class="wrong" role="alert">{problems.join("; ")}</p>}
    </form>
  );
}

function List({ jobs, next, filtered, reload }: { jobs: Job[]; next: string | null; filtered: boolean; reload: () => void }): JSX.Element {
  const [chosen, setChosen] = useState<number[]>([]);
  const [stopping, setStopping] = useState(false);
  const [at, setAt] = useState(0);
  useKey("j", () => move(1));
  useKey("k", () => move(-1));
  const rows = useRef<HTMLTableSectionElement>(null);
  const move = (by: number) => {
    const to = Math.max(0, Math.min(jobs.length - 1, document.activeElement?.closest("tbody tr") ? at + by : at));
    setAt(to);
    rows.current?.rows[to]?.querySelector("a")?.focus();
  };
  if (!jobs.length) return <None filtered={filtered} />;
  const picked = jobs.filter((one) => chosen.includes(one.num));
  const live = picked.filter((one) => !ENDED.has(one.state));
  return (
    <>
      <p class="summary" role="status">
        <Counts jobs={jobs} />
      </p>
      {picked.length > 0 && (
        <div class="bulk">
          <span>{plural(picked.length, "job")} chosen</span>
          <a class="button" href={href(["compare"], { jobs: chosen.join(",") })}>Compare</a>
          {canWrite.value && <button type="button" disabled={!live.length} onClick={() => setStopping(true)}>Stop…</button>}
          <button type="button" onClick={() => setChosen([])}>Choose none</button>
        </div>
      )}
      <div class="scroll" tabIndex={0} role="region" aria-label="Jobs">
        <table class="jobs">
          <caption class="hidden">Jobs, newest first</caption>
          <thead>
            <tr>
              <th scope="col"><span class="hidden">Choose</span></th>
              {COLUMNS.map((one) => <th key={one.name} scope="col" class={one.number ? "n" : one.wide ? "wide" : undefined}>{one.name}</th>)}
            </tr>
          </thead>
          <tbody ref={rows}>
            {jobs.map((job, index) => (
              <tr key={job.num} onFocusIn={() => setAt(index)} class={chosen.includes(job.num) ? "chosen" : undefined}>
                <td>
                  <input type="checkbox" aria-label={`Choose ${job.label}`} checked={chosen.includes(job.num)} onChange={() => setChosen((old) => toggled(old, job.num))} />
                </td>
                {COLUMNS.map((one) => <td key={one.name} class={one.number ? "n" : one.wide ? "wide" : undefined}>{one.cell(job)}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Pages next={next} />
      {stopping && <StopAll jobs={live} close={() => setStopping(false)} done={reload} />}
    </>
  );
}

function toggled(old: number[], num: number): number[] {
  return old.includes(num) ? old.filter((one) => one !== num) : [...old, num];
}

const COLUMNS: Column<Job>[] = [
  { name: "State", cell: (job) => <State of={job.state} /> },
  { name: "Job", cell: (job) => <a href={href(["jobs", job.num])}><span class="num">{job.label}</span> {job.name}</a> },
  { name: "Project", cell: (job) => <span class="quiet">{job.project}</span> },
  { name: "Step", number: true, cell: (job) => <Progress job={job} /> },
  { name: "Best", number: true, cell: (job) => <Best job={job} /> },
  { name: "Slots", number: true, cell: (job) => count(job.num_slots) },
  { name: "Run time", number: true, cell: (job) => duration(runSeconds(job)) },
  { name: "Cost", number: true, cell: (job) => (job.usd === null ? slotTime(held(job)) : usd(job.usd)) },
  { name: "Why", wide: true, cell: (job) => <span class="why" title={why(job)}>{why(job)}</span> },
  { name: "Submitted", number: true, cell: (job) => <When at={job.submitted_at} /> },
];

function Progress({ job }: { job: Job }): JSX.Element {
  const { epoch, num_epochs: all } = job.progress;
  const shown = progressText(job);
  if (!all || !HOLDING.has(job.state)) return <>{shown}</>;
  return (
    <>
      {shown}
      <Bar share={(epoch ?? 0) / all} label={`epoch ${epoch ?? 0} of ${all}`} />
    </>
  );
}

/** Slot time so far: a listing counts only what is over, so that of a running job is its present run at least. */
function held(job: Job): number {
  return HOLDING.has(job.state) ? Math.max(job.slot_seconds, (runSeconds(job) ?? 0) * job.num_slots) : job.slot_seconds;
}

function Best({ job }: { job: Job }): JSX.Element {
  if (job.best_metric === null) return <>–</>;
  return <><span class="quiet">{job.metric}</span> {value(job.best_metric)}</>;
}

function Counts({ jobs }: { jobs: Job[] }): JSX.Element {
  const states = new Map<string, number>();
  for (const one of jobs) states.set(one.state, (states.get(one.state) ?? 0) + 1);
  return <>{[...states].map(([state, number]) => `${count(number)} ${state}`).join(", ")} on this page</>;
}

function Pages({ next }: { next: string | null }): JSX.Element | null {
  const { cursor = "", ...query } = route.value.query;
  if (!next && !cursor) return null;
  return (
    <nav class="pages" aria-label="Pages">
      {cursor && <a class="button" href={href(["jobs"], query)}>First page</a>}
      {next && <a class="button" href={href(["jobs"], { ...query, cursor: next })}>Next page</a>}
    </nav>
  );
}

function None({ filtered }: { filtered: boolean }): JSX.Element {
  if (filtered) return <Empty title="No job matches this filter"><button type="button" onClick={() => setQuery({ q: null, cursor: null })}>Show all jobs</button></Empty>;
  return <Empty title="No job yet">Submit one with <code>phalanx submit job.yaml</code> or <code>phalanx run train.py</code>; it appears here at once.</Empty>;
}

function StopAll({ jobs, close, done }: { jobs: Job[]; close: () => void; done: () => void }): JSX.Element {
  const act = async () => {
    const sent = await Promise.allSettled(jobs.map((one) => send("post", "/api/v1/jobs/{num}/stop", { num: one.num }, { goal: "cancel" })));
    done();
    const failed = sent.flatMap((one, index) => (one.status === "rejected" ? [`${jobs[index]?.label}: ${(one.reason as Error).message}`] : []));
    if (failed.length) throw new Error(failed.join("; "));
  };
  const used = jobs.reduce((sum, one) => sum + one.slot_seconds, 0);
  return (
    <Ask title={`Stop ${plural(jobs.length, "job")}?`} verb="Stop them" danger act={act} close={close}>
      <p>They save a checkpoint where they can, and end. {slotTime(used)} went into them so far.</p>
      <ul>{jobs.slice(0, 10).map((one) => <li key={one.num}>{one.label} {one.name}, {one.state} <When at={one.started_at ?? one.submitted_at} /></li>)}</ul>
      {jobs.length > 10 && <p>and {jobs.length - 10} more, all until {new Date(now.value).toLocaleTimeString("en-GB")}.</p>}
    </Ask>
  );
}
