/** Up to 500 runs over one grid, their last values, and what differs between two of them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, type Job } from "../api/client";
import { count, plural, slotTime, value } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { hue, isMeasured } from "../lib/series.ts";
import { route, setQuery, useLoad } from "../ui/hooks";
import { type Line, Plot, Said, type View } from "../ui/chart";
import { Empty, Show, State, Table } from "../ui/parts";

const DRAWN = 6;

export function Compare(): JSX.Element {
  const nums = (route.value.query.jobs ?? "").split(",").map((one) => Number(one.replace("j-", ""))).filter((one) => one > 0).slice(0, 500);
  return (
    <>
      <div class="title">
        <h1>Compare</h1>
        <Choose nums={nums} />
      </div>
      {nums.length < 2 ? <Empty title="Choose two jobs or more">Write their numbers above, or choose them in the <a href={href(["jobs"])}>list of jobs</a>.</Empty> : <Chosen nums={nums} />}
    </>
  );
}

function Choose({ nums }: { nums: number[] }): JSX.Element {
  const [typed, setTyped] = useState(nums.map((one) => `j-${one}`).join(", "));
  useEffect(() => setTyped(nums.map((one) => `j-${one}`).join(", ")), [nums.join()]);
  const submit = (event: Event) => {
    event.preventDefault();
    setQuery({ jobs: (typed.match(/\d+/g) ?? []).join(",") });
  };
  return (
    <form class="tools" onSubmit={submit}>
      <label>Jobs <input class="long" placeholder="j-12, j-17" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
      <button type="submit">Compare</button>
    </form>
  );
}

function Chosen({ nums }: { nums: number[] }): JSX.Element {
  const jobs = useLoad(async (abort) => {
    const shown = await Promise.allSettled(nums.slice(0, 50).map((num) => get("/api/v1/jobs/{num}", { num }, undefined, abort)));
    return shown.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
  }, [nums]);
  return <Show of={jobs}>{(found) => (found.length ? <Curves nums={nums} jobs={found} /> : <Empty title="None of these jobs exists, or you may not read them" />)}</Show>;
}

function Curves({ nums, jobs }: { nums: number[]; jobs: Job[] }): JSX.Element {
  const logged = [...new Set(jobs.flatMap((one) => Object.keys(one.progress.last_metrics)))];
  const names = [...logged.filter((one) => !isMeasured(one)), "step_time_seconds"].slice(0, DRAWN);
  return (
    <>
      <div class="panels large">{names.map((name) => <Panel key={name} name={name} nums={nums} jobs={jobs} />)}</div>
      <h2>Last values</h2>
      <Table
        caption="Last values of the compared jobs"
        rows={jobs}
        rowKey={(one) => one.num}
        columns={[
          { name: "Job", cell: (one) => <><svg class="swatch" width="12" height="12" aria-hidden="true"><rect class="slot held" data-hue={hue(one.label)} width="12" height="12" rx="2" /></svg> <a href={href(["jobs", one.num])}><span class="num">{one.label}</span> {one.name}</a></> },
          { name: "State", cell: (one) => <State of={one.state} /> },
          { name: "Step", number: true, cell: (one) => count(one.progress.step) },
          ...logged.slice(0, 8).map((name) => ({ name, number: true, cell: (one: Job) => value(one.progress.last_metrics[name]) })),
          { name: "Slot time", number: true, cell: (one) => slotTime(one.cost?.held ?? one.slot_seconds) },
        ]}
      />
      {jobs.length === 2 && <Differences first={jobs[0] as Job} second={jobs[1] as Job} />}
    </>
  );
}

function Panel({ name, nums, jobs }: { name: string; nums: number[]; jobs: Job[] }): JSX.Element {
  const { from, to } = route.value.query;
  const range = { ...(from ? { after_step: Number(from) - 1 } : {}), ...(to ? { to_step: Number(to) } : {}) };
  const found = useLoad((abort) => get("/api/v1/metrics", {}, { job: nums, name: [name], max_points: 1000, ...range }, abort), [nums, name, range]);
  const view: View = { from: from ? Number(from) : null, to: to ? Number(to) : null, ranks: [0], smoothing: 0, log: false, wall: false };
  const lines = (found.data?.series ?? []).map((one): Line => ({ ...one, label: jobs.length <= 50 ? `j-${one.job}` : String(one.job) }));
  if (found.data && !lines.length) return <></>;
  return (
    <figure class="panel">
      <figcaption><b>{name}</b> <span class="quiet">{plural(lines.length, "job")}</span> <output /></figcaption>
      {lines.length > 0 && <Plot lines={lines} title={name} height={260} view={view} zoom={(a, b) => setQuery({ from: a, to: b })} />}
      <Said lines={lines} compact={false} zoomed={from !== undefined} />
      {from && <button type="button" onClick={() => setQuery({ from: null, to: null })}>Show all steps</button>}
    </figure>
  );
}

function Differences({ first, second }: { first: Job; second: Job }): JSX.Element {
  const found = useLoad((abort) => get("/api/v1/jobs/{num}/provenance/diff", { num: second.num }, { against: first.num }, abort), [first.num, second.num]);
  return (
    <>
      <h2>What differs</h2>
      <Show of={found}>
        {(one) => one.same
          ? <p class="quiet">Nothing that was fixed at submission differs.</p>
          : <Table
              caption="Parameters, software and inputs that are not the same"
              rows={one.changes}
              rowKey={(change) => change.name}
              columns={[
                { name: "What", cell: (change) => change.name },
                { name: first.label, cell: (change) => change.before ?? "–" },
                { name: second.label, cell: (change) => change.after ?? "–" },
              ]}
            />}
      </Show>
    </>
  );
}
