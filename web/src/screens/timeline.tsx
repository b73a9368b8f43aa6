/** What a run did over time: states as blocks, generations, and what happened at each border. */

import type { JSX } from "preact";
import { get, type Job } from "../api/client";
import { duration, time, words } from "../lib/format.ts";
import { blocks, totals, type Block } from "../lib/timeline.ts";
import { now, useLive, useLoad } from "../ui/hooks";
import { Empty, Shares, Show, State, Table } from "../ui/parts";

export function Timeline({ job }: { job: Job }): JSX.Element {
  const events = useLoad((abort) => get("/api/v1/jobs/{num}/events", { num: job.num }, {}, abort), [job.num]);
  useLive(events.reload, job.num);
  return (
    <Show of={events}>
      {(found) => {
        const told = found.events.map((one) => ({ ...one, message: one.reason.message || words(one.reason.code) }));
        const shown = blocks(told, job.ended_at !== null, now.value);
        if (!shown.length) return <Empty title="Nothing has happened yet" />;
        return (
          <>
            <h2>States over time</h2>
            <Lane shown={shown} />
            <h2>Time in each state</h2>
            <Shares parts={totals(shown)} unit={duration} />
            <h2>Changes</h2>
            <Table
              caption="States of the job in order"
              rows={[...shown].reverse()}
              rowKey={(one) => `${one.from} ${one.state} ${one.generation}`}
              columns={[
                { name: "From", cell: (one) => time(new Date(one.from).toISOString(), now.value) },
                { name: "State", cell: (one) => <State of={one.state} /> },
                { name: "Lasted", number: true, cell: (one) => duration((one.to - one.from) / 1000) },
                { name: "Attempt", number: true, cell: (one) => one.attempt ?? "–" },
                { name: "Generation", number: true, cell: (one) => one.generation ?? "–" },
                { name: "Cause", wide: true, cell: (one) => one.cause },
              ]}
            />
          </>
        );
      }}
    </Show>
  );
}

const WIDTH = 1200;

function Lane({ shown }: { shown: Block[] }): JSX.Element {
  const begin = shown[0]?.from ?? 0;
  const end = Math.max(begin + 1000, shown.at(-1)?.to ?? 0);
  const x = (at: number) => ((at - begin) / (end - begin)) * WIDTH;
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return (
    <figure class="lane">
      <svg viewBox={`0 0 ${WIDTH} 64`} role="img" aria-label={`${shown.length} states in ${duration((end - begin) / 1000)}; the table below lists them`}>
        {shown.map((one) => (
          <g key={`${one.from} ${one.state}`}>
            <rect class={`share ${one.state}`} x={x(one.from)} y="4" width={Math.max(1, x(one.to) - x(one.from))} height="32">
              <title>{`${one.state}: ${duration((one.to - one.from) / 1000)} from ${time(new Date(one.from).toISOString(), now.value)}. ${one.cause}`}</title>
            </rect>
            {x(one.to) - x(one.from) > 70 && <text x={(x(one.from) + x(one.to)) / 2} y="24" text-anchor="middle" class={`on ${one.state}`}>{one.state}</text>}
          </g>
        ))}
        {ticks.map((one) => <text key={one} x={one * WIDTH} y="58" text-anchor={one === 0 ? "start" : one === 1 ? "end" : "middle"} class="tick">{duration((one * (end - begin)) / 1000)}</text>)}
      </svg>
    </figure>
  );
}
