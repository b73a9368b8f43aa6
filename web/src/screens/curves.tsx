/** Every metric of a run: panels by prefix; a zoom asks the server again. */

import type { JSX } from "preact";
import { get, type Job } from "../api/client";
import { count } from "../lib/format.ts";
import { panels } from "../lib/series.ts";
import { route, setQuery, useLoad } from "../ui/hooks";
import { MetricPanel, type View } from "../ui/chart";
import { Empty, Show } from "../ui/parts";

export function Curves({ job }: { job: Job }): JSX.Element {
  const view = viewOf(route.value.query);
  const { find = "" } = route.value.query;
  const names = useLoad((abort) => get("/api/v1/jobs/{num}/metrics", { num: job.num }, { max_points: 4, rank: [0] }, abort), [job.num], job.ended_at ? 0 : 15_000);
  const saved = useLoad((abort) => get("/api/v1/jobs/{num}/checkpoints", { num: job.num }, undefined, abort), [job.num, job.progress.checkpoint_step]);
  const marks = (saved.data ?? []).map((one) => one.step);
  const zoom = (from: number | null, to: number | null) => setQuery({ from, to });
  return (
    <>
      <Tools view={view} find={find} />
      <Show of={names}>
        {(found) => {
          const groups = panels(found.names, find);
          if (!groups.length) return <Empty title={find ? `No metric has ${find} in its name` : "No metric yet"} />;
          return groups.map((one) => (
            <details key={one.prefix} open class="group">
              <summary>{one.prefix} <span class="quiet">{count(one.names.length)}</span></summary>
              <div class="panels large">{one.names.map((name) => <MetricPanel key={name} job={job} name={name} view={view} zoom={zoom} marks={marks} />)}</div>
            </details>
          ));
        }}
      </Show>
    </>
  );
}

function viewOf(query: Record<string, string>): View {
  const number = (text: string | undefined) => (text === undefined || !/^\d+$/.test(text) ? null : Number(text));
  return {
    from: number(query.from),
    to: number(query.to),
    ranks: (query.rank ?? "0").split(",").filter((one) => /^\d+$/.test(one)).map(Number).slice(0, 16),
    smoothing: Math.min(0.99, Math.max(0, Number(query.smooth ?? 0) || 0)),
    log: query.log === "true",
    wall: query.x === "time",
  };
}

function Tools({ view, find }: { view: View; find: string }): JSX.Element {
  return (
    <form class="tools" onSubmit={(event) => event.preventDefault()}>
      <label>Find <input type="search" value={find} placeholder="part of a name" onInput={(event) => setQuery({ find: event.currentTarget.value })} /></label>
      <label>Ranks <input class="short" value={view.ranks.join(",")} onChange={(event) => setQuery({ rank: event.currentTarget.value === "0" ? null : event.currentTarget.value })} /></label>
      <label>
        Over{" "}
        <select value={view.wall ? "time" : "step"} onChange={(event) => setQuery({ x: event.currentTarget.value === "time" ? "time" : null })}>
          <option value="step">steps</option>
          <option value="time">time</option>
        </select>
      </label>
      <label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value={view.smoothing} onInput={(event) => setQuery({ smooth: Number(event.currentTarget.value) || null })} /> <output>{view.smoothing.toFixed(2)}</output></label>
      <label><input type="checkbox" checked={view.log} onChange={(event) => setQuery({ log: event.currentTarget.checked })} /> Logarithmic</label>
      {view.from !== null && (
        <span>
          Steps {count(view.from)} to {count(view.to)} <button type="button" onClick={() => setQuery({ from: null, to: null })}>Show all</button>
        </span>
      )}
    </form>
  );
}
