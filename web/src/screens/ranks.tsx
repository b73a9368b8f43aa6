/** Step times of every rank as a heat map, and where the ranks run. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { get, type Job } from "../api/client";
import { count, value, words } from "../lib/format.ts";
import { heat, type Heat } from "../lib/heat.ts";
import { route, setQuery, useLoad } from "../ui/hooks";
import { Empty, Show, State, Table, When } from "../ui/parts";

const MEASURES = ["step_time_seconds", "data_loading_time_seconds", "computation_time_seconds", "communication_time_seconds", "optimizer_time_seconds"];
const MOST = 512;

export function Ranks({ job }: { job: Job }): JSX.Element {
  const measure = MEASURES.find((one) => one === route.value.query.of) ?? "step_time_seconds";
  const ranks = Array.from({ length: Math.min(job.world_size, MOST) }, (_, rank) => rank);
  const found = useLoad((abort) => get("/api/v1/jobs/{num}/metrics", { num: job.num }, { name: [measure], rank: ranks, max_points: 400 }, abort), [job.num, measure], job.ended_at ? 0 : 10_000);
  return (
    <>
      <form class="tools" onSubmit={(event) => event.preventDefault()}>
        <label>
          Show{" "}
          <select value={measure} onChange={(event) => setQuery({ of: event.currentTarget.value })}>
            {MEASURES.map((one) => <option key={one} value={one}>{words(one.replace("_seconds", ""))}</option>)}
          </select>
        </label>
      </form>
      <Show of={found}>
        {(data) => {
          const map = heat(data.series);
          if (!map.ranks.length) return <Empty title={`No rank has reported its ${words(measure.replace("_seconds", ""))}`} />;
          return <Map map={map} />;
        }}
      </Show>
      <h2>Nodes</h2>
      <Nodes job={job} />
    </>
  );
}

function Map({ map }: { map: Heat }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = map.ranks.length;
  const high = Math.max(4, Math.min(28, Math.floor(480 / rows)));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    context.clearRect(0, 0, map.bins, rows);
    map.cells.forEach((row, y) => row.forEach((one, x) => {
      if (one === null) return;
      context.fillStyle = shade(one);
      context.fillRect(x, y, 1, 1);
    }));
  }, [map]);
  const slow = map.ranks.filter((one) => one.ratio > 1.15).sort((a, b) => b.ratio - a.ratio);
  return (
    <>
      <p class="summary">
        {slow.length ? slow.slice(0, 3).map((one) => `Rank ${one.rank} takes ${one.ratio.toFixed(2)} × the median of its steps.`).join(" ") : "No rank is slower than the others by more than 15 %."}
      </p>
      <figure class="heat">
        <canvas ref={canvas} width={map.bins} height={rows} data-high={high} role="img" aria-label={`${rows} ranks by ${map.bins} intervals; the table has each rank's median`} />
        <figcaption>
          <span>step {count(map.from)}</span>
          <span class="scale"><i class="fast" /> faster <i class="same" /> median <i class="slow" /> 1.5 × and slower</span>
          <span>step {count(map.to)}</span>
        </figcaption>
      </figure>
      <Table
        caption="Ranks, slowest first"
        rows={[...map.ranks].sort((a, b) => b.ratio - a.ratio).slice(0, 100)}
        rowKey={(one) => one.rank}
        columns={[
          { name: "Rank", number: true, cell: (one) => one.rank },
          { name: "Median, s", number: true, cell: (one) => value(one.median) },
          { name: "Of the median of all", number: true, cell: (one) => `${one.ratio.toFixed(2)} ×` },
        ]}
      />
    </>
  );
}

/** Blue below the median of a step, grey at it, orange to red above. */
function shade(ratio: number): string {
  const far = Math.max(-1, Math.min(1, (ratio - 1) / 0.5));
  if (far < 0) return `hsl(212 ${15 - far * 55}% ${90 + far * 40}%)`;
  return `hsl(${40 - far * 34} ${15 + far * 70}% ${90 - far * 48}%)`;
}

function Nodes({ job }: { job: Job }): JSX.Element {
  if (!job.nodes.length) return <Empty title="The job holds no node" />;
  return (
    <Table
      caption="Nodes of the job"
      rows={job.nodes}
      rowKey={(one) => one.node_rank}
      columns={[
        { name: "Node", cell: (one) => one.node },
        { name: "Host", cell: (one) => one.host ?? "–" },
        { name: "Phase", cell: (one) => <State of={one.phase} /> },
        { name: "Slots", number: true, cell: (one) => one.slots.join(", ") },
        { name: "Step", number: true, cell: (one) => count(one.step) },
        { name: "Last heard of", number: true, cell: (one) => <When at={one.last_seen_at} /> },
      ]}
    />
  );
}
